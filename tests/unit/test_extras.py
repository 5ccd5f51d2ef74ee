"""What `pip install 'proctor[extra]'` promises; `make test-extras` runs each in an empty venv."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

EXTRAS: dict[str, list[str]] = tomllib.loads(
    (Path(__file__).parents[2] / "pyproject.toml").read_text()
)["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_with_gymnasium_has_what_gymnasium_imports_undeclared(extra: str) -> None:
    names = {requirement.split(">")[0].split("=")[0] for requirement in EXTRAS[extra]}
    assert "gymnasium" not in names or "packaging" in names
