"""Without PyArrow, every command that needs it gives one line with the pip command."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.unit.datasets.making import GOLDEN

SOURCES = Path(__file__).parents[3] / "src" / "proctor"
COMMANDS = (
    "data info ROOT",
    "data check ROOT",
    "data view ROOT --html=out.html",
    "data delete ROOT --episodes=0 --output=out",
    "data split ROOT --splits={train:[0],val:[1]}",
    "data merge ROOT ROOT --output=out",
    "data rename-feature ROOT action act --output=out",
    "data remove-feature ROOT action --output=out",
    "data set-task ROOT --task=push --output=out",
    "data to-video ROOT --output=out",
    "data reencode ROOT --output=out",
    "data stats ROOT --output=out",
    "data convert ROOT --output=out",
    "train --policy.type=act --dataset.repo_id=x --dataset.root=ROOT --output_dir=out",
    "eval --env.type=fake --policy.type=random --record=out",
)
WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
from proctor.cli import main
for line in sys.stdin.read().splitlines():
    code = main(line.split("\\t"))
    print(code, flush=True)
    print("--", file=sys.stderr, flush=True)
"""


def test_every_command_that_needs_pyarrow_gives_one_line_with_the_pip_command(
    tmp_path: Path,
) -> None:
    root = str(GOLDEN / "video3ep")
    lines = "\n".join(line.replace("ROOT", root).replace(" ", "\t") for line in COMMANDS)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW],
        input=lines, capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    said = done.stderr.split("--\n")[:-1]
    wrong = {
        command: text
        for command, text in zip(COMMANDS, said, strict=True)
        if text.count("\n") != 1 or "pip install 'proctor[dataset]'" not in text
    }
    assert wrong == {}
    assert done.stdout.split() == ["2"] * len(COMMANDS)
    assert list(tmp_path.iterdir()) == []


def test_one_module_imports_pyarrow() -> None:
    importers = [
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import)
        if any(alias.name.split(".")[0] == "pyarrow" for alias in node.names)
    ]
    assert set(importers) == {"datasets/format/arrow.py"}
