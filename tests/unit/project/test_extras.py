"""Extras of `pip install 'proctor[extra]'`; `make test-extras` runs each in an empty venv."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from scripts.try_extras import all_extras, chosen

EXTRAS: dict[str, list[str]] = tomllib.loads(
    (Path(__file__).parents[3] / "pyproject.toml").read_text()
)["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_with_gymnasium_has_what_gymnasium_imports_undeclared(extra: str) -> None:
    names = {requirement.split(">")[0].split("=")[0] for requirement in EXTRAS[extra]}
    assert "gymnasium" not in names or "packaging" in names


def test_every_extra_is_tried() -> None:
    assert all_extras() == list(EXTRAS)


def test_one_extra_is_chosen_by_name_or_by_commit() -> None:
    assert chosen(["gym", "hub"], []) == ["gym", "hub"]
    assert chosen(["gym", "hub"], ["--only=hub"]) == ["hub"]
    assert chosen(["gym", "hub"], ["--by-commit"]) in (["gym"], ["hub"])
