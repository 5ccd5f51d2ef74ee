"""Which modules group episodes by what names or measures their start: one does, for all others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src/proctor"
UNITS = "stats/independent_units.py"
STATISTICS = ("stats", "report", "callbacks", "evaluation", "commands", "api")
IDENTITIES = {
    *("seed", "init_state", "index", "episode_index"),
    *("world", "start", "started", "planned", "measured", "digest"),
}
"""Fields that name or measure an episode's start, read from any variable."""
UNIT_INDEX = ("index", "_index", "_units")
"""Names of a ``UnitIndex``, whose ``add`` takes starts."""
OTHER_USES = {
    "report/run/page_data.py": "columns of the page's table of episodes",
    "report/compare/data.py": "columns of the page's table of pairs",
    "commands/evaluation/eval_several.py": "seeds of the flag, and units with several seeds",
    "commands/robots/eval_robot.py": "seeds of the flag",
    "evaluation/recording.py": "the seed of the flag",
    "report/claims/card.py": "outcomes of a card, in the order of the plan",
    "report/compare/warnings.py": "episodes that were copied between folders: times and bits",
    "report/run/starts.py": "different units whose episodes have the same bits",
    "report/run/stopped.py": "rounds of a stop rule: one episode of every task",
    "callbacks/early_stopping.py": "rounds of a stop rule",
    "evaluation/stop_rules.py": "rounds of a stop rule",
    "evaluation/starts/unseen.py": "which planned episode takes which unseen start",
    "commands/data/lerobot.py": "episodes of a dataset",
    "report/dataset/data.py": "a column of a dataset",
}
"""Modules that use such fields in a key, with what for. None of them counts units by it."""


def _keys(node: ast.AST) -> list[ast.expr]:
    """Return what a node uses as a key: of a dict, a set, a tuple, a call or a sorting."""
    match node:
        case ast.Tuple(elts=elts) | ast.Set(elts=elts):
            return elts
        case ast.DictComp(key=key) | ast.SetComp(elt=key) | ast.Subscript(slice=key):
            return [key]
        case ast.Lambda(body=key):
            return [key]
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[key, *_]):
            of_index = method == "add" and ast.unparse(owner).endswith(UNIT_INDEX)
            grows = method in ("setdefault", "add", "get", "pop")
            return [key] if grows and not of_index else []
        case ast.Call(func=ast.Name(id="Counter" | "set" | "frozenset" | "groupby"), args=args):
            return [part.elt for part in args if isinstance(part, ast.GeneratorExp | ast.ListComp)]
        case ast.Call(func=ast.Name(id="attrgetter"), args=args):
            return args
    return []


def _attributes(key: ast.expr) -> set[str]:
    """Return the attributes that a key is made of; most calls make something else of theirs."""
    if isinstance(key, ast.Attribute) and key.attr == "names":
        return set()  # what a start's numbers are, which says nothing of their values
    if isinstance(key, ast.Attribute):
        return {key.attr, *_attributes(key.value)}
    if isinstance(key, ast.Call):
        converts = isinstance(key.func, ast.Name) and key.func.id in (
            "str",
            "repr",
            "tuple",
            "hash",
        )
        return set().union(*map(_attributes, [key.func, *(key.args if converts else [])]))
    parts = [part for part in ast.iter_child_nodes(key) if isinstance(part, ast.expr)]
    return set().union(*map(_attributes, parts))


def _getters(node: ast.AST) -> set[str]:
    """Return the attributes of ``attrgetter("seed", ...)``."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attrgetter"):
        texts = [part.value for part in node.args if isinstance(part, ast.Constant)]
        return {word for text in texts for word in str(text).split(".")}
    return set()


def _grouped_fields(tree: ast.Module) -> set[str]:
    """Return the fields of episodes that a module uses in a key."""
    found = set()
    for node in ast.walk(tree):
        found |= _getters(node).union(*map(_attributes, _keys(node)))
    return found & IDENTITIES


def _modules() -> list[Path]:
    return [path for part in STATISTICS for path in sorted((SRC / part).rglob("*.py"))]


@pytest.mark.parametrize("path", _modules(), ids=lambda path: path.relative_to(SRC).as_posix())
def test_no_other_module_groups_episodes_by_seed_index_or_start(path: Path) -> None:
    name = path.relative_to(SRC).as_posix()
    if name != UNITS and name not in OTHER_USES:
        fields = _grouped_fields(ast.parse(path.read_text()))
        assert not fields, f"{name} groups by {sorted(fields)} on its own; take units from {UNITS}"


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("worlds = {(row.suite, row.seed): row for row in rows}", "seed"),
        ("seen.add(x.start)", "start"),
        ("groups.setdefault(one.episode_index, []).append(one)", "episode_index"),
        ("by[str(self.spec.index)] = 1", "index"),
        ("n = len({e.started.planned for e in done})", "planned"),
        ("n = len(set(e.init_state for e in done))", "init_state"),
        ("n = Counter(r.start.digest for r in rows)", "digest"),
        ("rows.sort(key=lambda r: r.world)", "world"),
        ("for seed, own in groupby(rows, attrgetter('seed')): pass", "seed"),
    ],
)
def test_the_test_sees_a_module_that_does(line: str, field: str) -> None:
    assert field in _grouped_fields(ast.parse(line))


def test_the_test_lets_starts_become_units() -> None:
    assert not _grouped_fields(ast.parse("node = index.add(row.started)\nx = f[unit(row.start)]"))


@pytest.mark.parametrize("name", OTHER_USES)
def test_the_exceptions_are_still_needed(name: str) -> None:
    assert _grouped_fields(ast.parse((SRC / name).read_text())), f"{name} is no exception"
