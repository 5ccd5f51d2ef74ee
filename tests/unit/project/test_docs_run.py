"""Commands and code in the docs run unchanged."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path

import pytest

from proctor.cli import main

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = {"adding_a_benchmark.md": "track", "adding_a_policy.md": "circles"}


def fences(page: str) -> list[str]:
    """Return the Python code between fences of a page."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def indented(page: str, first: str) -> str:
    """Return a page's indented block that begins with ``first``, across empty lines."""
    text = (DOCS / page).read_text()
    block = re.search(rf"^    {re.escape(first)}.*\n(?:(?:    .*)?\n)*", text, flags=re.MULTILINE)
    assert block is not None, f"{page} shows no {first!r}"
    return re.sub("^    ", "", block[0], flags=re.MULTILINE)


@pytest.fixture
def beside_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the examples in ``my_package``, as the pages say."""
    folder = tmp_path / "my_package"
    folder.mkdir()
    for page, name in EXAMPLES.items():
        (folder / f"{name}.py").write_text(fences(page)[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.usefixtures("beside_the_examples")
@pytest.mark.parametrize("page", EXAMPLES)
def test_the_commands_for_a_plug_in_run_in_its_folder(page: str) -> None:
    lines = re.findall(
        r"^ +proctor (eval .*my_package.*)$", (DOCS / page).read_text(), re.MULTILINE
    )
    assert lines
    for line in lines:
        assert main(shlex.split(line)) == 0


@pytest.mark.usefixtures("beside_the_examples")
@pytest.mark.parametrize(("page", "first"), [
    ("adding_a_benchmark.md", "from proctor.testing"),
    ("adding_a_policy.md", "from proctor.benchmarks.base"),
])  # fmt: skip
def test_the_checks_of_the_contracts_pass_on_the_examples(page: str, first: str) -> None:
    exec(compile(fences(page)[0] + indented(page, first), page, "exec"), module_of(page).__dict__)


def module_of(page: str) -> types.ModuleType:
    """Return a module to run a page's code in; dataclasses look theirs up by name."""
    module = types.ModuleType(f"page_{page.removesuffix('.md')}")
    sys.modules[module.__name__] = module
    return module


def test_the_page_on_python_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = module_of("python.md").__dict__
    for code in fences("python.md"):
        exec(compile(code, "python.md", "exec"), shown)
    assert shown["run"].complete
    assert len(list(tmp_path.glob("outputs/eval/*/*/run.json"))) == 3
