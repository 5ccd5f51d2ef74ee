"""`tests/medium.txt` names tests that exist, and `make test-fast` leaves them out."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from scripts.medium_tests import read_times, updated

from tests.conftest import MEDIUM

ROOT = Path(__file__).resolve().parents[3]


@cache
def functions_of(file: str) -> frozenset[str]:
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_listed_test_exists() -> None:
    lost = [
        name
        for name in sorted(MEDIUM)
        if name.split("::")[-1] not in functions_of(name.partition("::")[0])
    ]
    assert lost == [], "write the list again: .venv/bin/python scripts/medium_tests.py"


def test_cases_of_a_test_are_added_up_and_tests_that_did_not_run_stay(tmp_path: Path) -> None:
    times = tmp_path / "times"
    times.write_text("0.6 a.py::one\n0.6 a.py::one\n0.2 a.py::two\n")
    seconds = read_times(times)
    assert seconds == {"a.py::one": pytest.approx(1.2), "a.py::two": pytest.approx(0.2)}
    assert updated({"a.py::two", "b.py::three"}, seconds) == ["a.py::one", "b.py::three"]


def test_a_listed_test_is_marked_medium(request: pytest.FixtureRequest) -> None:
    here = request.node.nodeid.partition("[")[0]
    assert here not in MEDIUM, "this test takes no second"
    assert request.node.get_closest_marker("medium") is None
