"""The structure of the sources: no import cycles and no unused names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from proctor import plugins

ROOT = Path(__file__).parents[3]
CALLED_BY_OTHERS = {
    "close_extras", "verify_request", "do_HEAD", "do_POST", "log_message", "get_obs",
    "_get_coverage", "_handle_collision",
    "_get_curr_obs_combined_no_goal", "_gripper_caging_reward", "_reset_hand", "from_matrix",
}  # fmt: skip
"""Names that gymnasium, socketserver, http.server, gym_pusht and Meta-World call."""
FACE = "proctor"
"""The package imports ``evaluate`` and ``make_env`` lazily."""


@cache
def modules() -> dict[str, Path]:
    """Return all modules of ``src`` and ``measurements`` by import name."""
    found = {}
    for top, package in (("src", "proctor"), ("src", "proctor_worker"), ("", "measurements")):
        top = ROOT / top
        for path in (top / package).rglob("*.py"):
            parts = path.relative_to(top).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef]:
    """Return the nodes used here at any depth: walking the trees takes longer than parsing."""
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, kinds)]


def imports(module: str) -> set[str]:
    """Return our modules that a module imports, anywhere in it, also lazily."""
    found: set[str] = set()
    for node in nodes_of(modules()[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules() else node.module)
    return (found & modules().keys()) - {module, FACE}


def names_of(module: str) -> set[str]:
    """Return the names that a module defines or imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(tree_of(modules()[module])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def test_every_import_of_a_measurement_exists() -> None:
    """Measurements may run on rented machines, and no other test checks this first."""
    missing = [
        f"{module}: {node.module}.{alias.name}"
        for module in modules()
        if module.startswith("measurements")
        for node in ast.walk(tree_of(modules()[module]))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("proctor")
        for alias in node.names
        if f"{node.module}.{alias.name}" not in modules()
        and (node.module not in modules() or alias.name not in names_of(node.module))
    ]
    assert missing == []


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other in a circle; empty if there are none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        path.append(module)
        for other in sorted(graph[module]):
            if found := visit(other):
                return found
        done.add(path.pop())
        return []

    return next((found for module in sorted(graph) if (found := visit(module))), [])


def test_a_folder_has_at_most_twenty_modules_and_a_module_600_lines() -> None:
    rooms: dict[Path, int] = {}
    long = []
    for module, path in modules().items():
        if module.startswith("proctor"):
            rooms[path.parent] = rooms.get(path.parent, 0) + (path.name != "__init__.py")
            long += [module] if len(path.read_text(encoding="utf-8").splitlines()) > 600 else []
    assert [str(room) for room, modules_of in rooms.items() if modules_of > 20] == []
    assert long == []


def test_a_room_exports_nothing() -> None:
    """Only packages that users import from list names in ``__init__``; ruff finds the rest."""
    exporting = [
        module
        for module, path in modules().items()
        if path.name == "__init__.py" and "__all__" in names_of(module)
    ]
    assert sorted(exporting) == ["proctor", "proctor.datasets"]


def test_there_is_no_import_cycle() -> None:
    graph = {module: imports(module) for module in modules() if module != FACE}
    assert sum(map(len, graph.values())) > 500  # it does see imports
    assert circle(graph) == []


ALLOWED = {
    *{("language_act", "act"), ("pi0_fast", "pi0")},
    ("libero_plus", "libero"),
    ("libero_pro", "libero"),
}
"""Policy families and benchmarks that build on another one."""


def plugin_packages(kind: str) -> set[str]:
    """The packages of the built-in benchmarks or policies, of which a plug-in may be one module."""
    place = f"proctor.{kind}."
    built_in = plugins.BUILT_IN[kind].values()
    return {place + path.removeprefix(place).partition(":")[0].split(".")[0] for path in built_in}


def reached(start: str) -> set[str]:
    """The modules that those of a package import, directly or through others."""
    todo = [module for module in modules() if f"{module}.".startswith(f"{start}.")]
    found: set[str] = set(todo)
    while todo:
        new = imports(todo.pop()) - found
        found |= new
        todo += new
    return found


@pytest.mark.parametrize("kind", ["benchmarks", "policies"])
def test_benchmarks_and_policy_families_do_not_import_each_other(kind: str) -> None:
    shared = {"proctor.policies.lerobot", "proctor.policies.remote"}
    packages = plugin_packages(kind) - shared
    assert len(packages) > 5
    broken = {
        (package.rpartition(".")[2], other.rpartition(".")[2])
        for package in packages
        for other in packages - {package}
        if any(f"{module}.".startswith(f"{other}.") for module in reached(package))
    }
    assert broken - ALLOWED == set()


def test_an_import_cycle_would_be_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def defined() -> Iterator[tuple[str, str]]:
    """Return every top-level name and method of ``src``, with its place."""
    for module, path in modules().items():
        if module.startswith("measurements"):
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name, module
        for statement in tree_of(path).body:
            targets = statement.targets if isinstance(statement, ast.Assign) else ()
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, module


def test_every_name_is_used() -> None:
    """In sources, tests, measurements or documents. A name found once is only defined."""
    places = ("src", "tests", "measurements", "scripts", "examples", "docs")
    texts = [
        path.read_text(encoding="utf-8")
        for place in places
        for path in (ROOT / place).rglob("*")
        if path.suffix in (".py", ".md", ".js", ".html")
        if ROOT / "docs" / "_build" not in path.parents
    ]
    words = re.findall(r"\w+", "\n".join([*texts, (ROOT / "pyproject.toml").read_text()]))
    said = Counter(words)
    unused = [
        f"{module}.{name}"
        for name, module in defined()
        if said[name] < 2 and not name.startswith("__") and name not in CALLED_BY_OTHERS
    ]
    assert unused == []


def test_phases_of_an_evaluation_receive_settings_and_not_the_whole_context() -> None:
    holders = {
        module
        for module in modules()
        if "proctor.evaluation.rollout_context" in imports(module)
        and re.search(r"\bRolloutContext\b", modules()[module].read_text(encoding="utf-8"))
    }
    assert holders == {
        "proctor.evaluation.notices",  # no phase: it quotes config, benchmark, policy and plan
        "proctor.evaluation.preparing",
        "proctor.evaluation.recording",
        "proctor.evaluation.run",
        "proctor.evaluation.starts.unseen",  # another plan, by resets of its simulators
        "proctor.commands.evaluation.eval",
        "proctor.commands.training.record",
    }


def test_untrusted_text_is_sanitised_in_one_place_for_terminals_and_one_for_pages() -> None:
    def who(calls: str) -> set[str]:
        return {name for name, path in modules().items() if calls in path.read_text("utf-8")}

    assert who(".isprintable(") == {"proctor.errors"}
    assert who("html.escape(") == {"proctor.report.html.document"}
