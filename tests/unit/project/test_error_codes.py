"""Every error carries a stable code, and tests match the code instead of the wording."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from proctor import errors
from proctor.errors import MissingExtra, ProctorError, UsageError
from tests.refusals import refuses

ROOT = Path(__file__).parents[3]
CODE = re.compile(r"[a-z]+(-[a-z]+)*\.[a-z0-9]+(-[a-z0-9]+)*")
DONE = {
    "api",
    "benchmarks",
    "callbacks",
    "cli",
    "commands",
    "config",
    "datasets",
    "engine",
    "evaluation",
    "features",
    "fingerprint",
    "lerobot_flags",
    "parsing",
    "plugins",
    "policies",
    "protocols",
    "report",
    "runs",
    "serving",
    "stats",
    "system",
    "testing",
    "training",
    "types",
}
"""Packages and modules of ``proctor`` in which every error has a code."""


def error_classes() -> dict[str, type[ProctorError]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, ProctorError)
    }


def without_code() -> set[str]:
    """Names of the error classes that need a code at every call."""
    return {name for name, kind in error_classes().items() if not kind.default_code}


def sources() -> Iterator[Path]:
    for name in sorted(DONE):
        path = ROOT / "src" / "proctor" / name
        yield from path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]


def calls(path: Path, names: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def test_every_error_that_is_raised_has_a_code() -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sources()
        for call in calls(path, without_code())
        if not any(keyword.arg == "code" for keyword in call.keywords)
    ]
    assert missing == []


def test_codes_are_well_formed() -> None:
    codes = {
        keyword.value.value: f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sources()
        for call in calls(path, set(error_classes()))
        for keyword in call.keywords
        if keyword.arg == "code"
        if isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
    }
    codes |= {
        kind.default_code: name for name, kind in error_classes().items() if kind.default_code
    }
    assert {code: where for code, where in codes.items() if not CODE.fullmatch(code)} == {}


def test_no_test_pins_the_english_of_an_error() -> None:
    names = set(error_classes())
    pinned = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for name in sorted(DONE)
        for path in (ROOT / "tests" / "unit" / name).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises"
        if node.args and isinstance(node.args[0], ast.Name) and node.args[0].id in names
        if any(keyword.arg == "match" for keyword in node.keywords)
    ]
    assert pinned == []


def test_an_error_keeps_its_code_between_processes() -> None:
    there = pickle.loads(pickle.dumps(UsageError("--a is unknown", code="flag.unknown")))
    assert (type(there), str(there), there.code) == (UsageError, "--a is unknown", "flag.unknown")
    there = pickle.loads(pickle.dumps(MissingExtra("av", "video")))
    assert there.code == "extra.missing"
    assert "proctor[video]" in str(there)


def test_another_code_is_not_the_expected_one() -> None:
    with pytest.raises(AssertionError), refuses(UsageError, "flag.unknown"):
        raise UsageError("--a is too small", code="flag.out-of-range")
