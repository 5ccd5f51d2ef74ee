"""Which modules group episodes by what names or measures their start: one does, for all others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src/proctor"
UNITS = "stats/independent_units.py"
STATISTICS = ("stats", "report", "callbacks", "evaluation", "commands", "api")
IDENTITIES = {"seed", "init_state", "world", "start"}
"""What names or measures an episode's start."""
REPORTED = {
    "report/run/page_data.py": "columns of the page's table of episodes",
    "commands/evaluation/eval_several.py": "a note on units whose episodes have several seeds",
}
"""Modules that show these fields of an episode, with what for."""


def _grouped_fields(tree: ast.Module) -> set[str]:
    """Return the fields that a module uses in a key: of a dict, a set, a tuple or a call."""
    found = set()
    for node in ast.walk(tree):
        keys: list[ast.expr] = []
        if isinstance(node, ast.Tuple):
            keys = node.elts
        elif isinstance(node, ast.DictComp):
            keys = [node.key]
        elif isinstance(node, ast.SetComp):
            keys = [node.elt]
        elif isinstance(node, ast.Subscript):
            keys = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            keys = node.args[:1] if node.func.attr in ("setdefault", "add", "get", "pop") else []
        elif isinstance(node, ast.Lambda):
            keys = [node.body]
        for key in keys:
            if isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name):
                of_episode = key.value.id in ("row", "spec", "episode", "pair")
                found |= {key.attr} & IDENTITIES if of_episode else set()
    return found


def _modules() -> list[Path]:
    return [path for part in STATISTICS for path in sorted((SRC / part).rglob("*.py"))]


@pytest.mark.parametrize("path", _modules(), ids=lambda path: path.relative_to(SRC).as_posix())
def test_no_other_module_groups_episodes_by_seed_or_start(path: Path) -> None:
    name = path.relative_to(SRC).as_posix()
    if name != UNITS and name not in REPORTED:
        assert not _grouped_fields(ast.parse(path.read_text())), (
            f"{name} groups episodes on its own; take units from {UNITS}"
        )


def test_the_test_sees_a_module_that_does() -> None:
    text = "worlds = {(row.suite, row.seed): row for row in rows}\nseen.add(row.start)"
    assert _grouped_fields(ast.parse(text)) == {"seed", "start"}


def test_the_exceptions_are_still_needed() -> None:
    for name in REPORTED:
        assert _grouped_fields(ast.parse((SRC / name).read_text())), f"{name} is no exception"
