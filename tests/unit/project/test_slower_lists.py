"""The lists of slower tests name tests that exist, and conftest marks those tests."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from scripts.slower_tests import Times, read_times, updated

from tests.conftest import LISTED, part_of

ROOT = Path(__file__).resolve().parents[3]


@cache
def functions_of(file: str) -> frozenset[str]:
    path = ROOT / file
    source = path.read_text(encoding="utf-8") if path.is_file() else ""
    return frozenset(re.findall(r"^ *(?:async )?def (\w+)\(", source, re.MULTILINE))


@pytest.mark.parametrize("marker", LISTED)
def test_every_listed_test_exists(marker: str) -> None:
    lost = [
        name
        for name in sorted(LISTED[marker])
        if name.split("::")[-1] not in functions_of(name.partition("::")[0])
    ]
    assert lost == [], "write the lists again: .venv/bin/python scripts/slower_tests.py"


def test_cases_of_a_test_are_added_up(tmp_path: Path) -> None:
    times = tmp_path / "times"
    times.write_text("0.5 1.0 a.py::one\n0.25 1.5 a.py::one\n0.2 0.1 a.py::two\n")
    assert read_times(times) == {"a.py::one": Times(0.75, 2.5), "a.py::two": Times(0.2, 0.1)}


def test_tests_that_did_not_run_stay_listed() -> None:
    measured = {"a.py::one": True, "a.py::two": False}
    assert updated({"a.py::two", "b.py::three"}, measured) == ["a.py::one", "b.py::three"]


@pytest.mark.parametrize("marker", LISTED)
def test_an_unlisted_test_is_not_marked(request: pytest.FixtureRequest, marker: str) -> None:
    here = request.node.nodeid.partition("[")[0]
    assert here not in LISTED[marker], "this test takes no second"
    assert request.node.get_closest_marker(marker) is None


def test_the_parts_of_a_suite_are_disjoint_and_complete() -> None:
    functions = {f"a.py::test_{name}" for name in "abcdefgh"}
    parts = [part_of(functions, f"{part}/3") for part in (1, 2, 3)]
    assert sorted(map(len, parts)) == [2, 3, 3]
    assert set.union(*parts) == functions
