"""Commands and code in the docs run unchanged."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path

import pytest

from proctor.cli import main
from tests.unit.protocols.serving import served

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = {"tutorials/own_benchmark.md": "track", "tutorials/own_policy.md": "circles"}


def fences(page: str) -> list[str]:
    """Return the Python code between fences of a page."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def fence(page: str, first: str) -> str:
    """Return the Python code of a page that begins with ``first``."""
    (code,) = (code for code in fences(page) if code.startswith(first))
    return code


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
    text = (DOCS / page).read_text().replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ )?proctor ((?:eval|list) .*my_package.*)$", text, re.MULTILINE)
    assert lines
    for line in lines:
        assert main(shlex.split(line.partition(" | ")[0])) == 0


@pytest.mark.parametrize(("page", "first"), [
    ("tutorials/own_benchmark.md", "from proctor.testing"),
    ("tutorials/own_policy.md", "from proctor.benchmarks.base"),
])  # fmt: skip
def test_the_checks_of_the_contracts_pass_on_the_examples(
    page: str, first: str, beside_the_examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(beside_the_examples)
    exec(compile(fence(page, first), page, "exec"), module_of(page).__dict__)


def module_of(page: str) -> types.ModuleType:
    """Return a module to run a page's code in; dataclasses look theirs up by name."""
    module = types.ModuleType(f"page_{Path(page).stem}")
    sys.modules[module.__name__] = module
    return module


def test_the_page_on_python_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = module_of("reference/python.md").__dict__
    for code in fences("reference/python.md"):
        exec(compile(code, "python.md", "exec"), shown)
    assert shown["run"].complete
    assert len(list(tmp_path.glob("outputs/eval/*/*/run.json"))) == 6


def test_the_guides_on_writing_and_reading_datasets_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for page in ("guides/write_a_dataset.md", "guides/read_a_dataset.md"):
        for code in fences(page):
            exec(compile(code, page, "exec"), module_of(page).__dict__)
    shown = re.search(r"```text\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert shown is not None
    assert capsys.readouterr().out.startswith(shown[1])


def test_the_python_code_of_the_guide_on_evaluation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = module_of("guides/evaluate.md").__dict__
    for code in fences("guides/evaluate.md"):
        exec(compile(code, "evaluate.md", "exec"), shown)
    assert shown["run"].complete


def test_the_client_in_the_guide_on_serving_gets_actions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (code,) = fences("guides/serve.md")
    settings = {
        "policy__type": "random",
        "policy__inputs": ["observation.image", "observation.state"],
        "policy__n_action_steps": 8,
    }
    with served(**settings) as (url, _):
        code = code.replace("ws://127.0.0.1:8100", url)
        exec(compile(code, "serve.md", "exec"), module_of("guides/serve.md").__dict__)
    assert "(8, 2)" in capsys.readouterr().out
