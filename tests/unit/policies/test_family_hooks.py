"""Families declare their own pipeline steps and optimiser types."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from proctor.policies.lerobot.config.families import (
    FAMILIES,
    families,
    family_steps,
    import_attribute,
    optimizer_groups,
)
from proctor.policies.lerobot.config.presets import OPTIMIZERS
from proctor.policies.lerobot.processors import step_reader
from proctor.policies.lerobot.processors.step_reader import KNOWN, build_step

SHARED = Path(step_reader.__file__).parent


@pytest.mark.parametrize("name", sorted(family_steps()))
def test_a_declared_step_has_the_name_that_it_is_declared_by(name: str) -> None:
    assert import_attribute(family_steps()[name]).registry_name == name
    assert type(build_step({"registry_name": name}, {}, "here")) is import_attribute(
        family_steps()[name]
    )


def test_a_family_step_lives_in_its_familys_folder() -> None:
    for plugin in families().values():
        folder = ".".join(plugin.network.split(".")[:3])
        assert all(place.startswith(f"{folder}.") for place in plugin.steps.values())
    assert not family_steps().keys() & KNOWN.keys()


def test_an_optimizer_type_of_a_family_is_grouped_by_the_family() -> None:
    own = [kind for kind in OPTIMIZERS if optimizer_groups(kind) is not None]
    assert own == ["xvla-adamw"]
    assert optimizer_groups("xvla-adamw").__module__ == "proctor.policies.xvla.network"


def test_what_all_families_share_imports_none_of_them() -> None:
    folders = {place.rpartition(".")[0] for place in FAMILIES.values()}
    for file in SHARED.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert node.module.rpartition(".")[0] not in folders, file.name
