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
OPTIONAL = (
    "pyarrow", "torch", "av", "gymnasium", "mujoco", "huggingface_hub", "safetensors", "PIL",
    "wandb", "ray", "zmq", "grpc", "websockets", "tokenizers", "cv2", "pandas",
)  # fmt: skip
"""Packages of extras."""
BASE_COMMANDS = (
    "eval --env.type=fake --policy.type=expert --eval.n_episodes=1 --output_dir=a",
    "eval --env.type=fake --policy.type=random --eval.n_episodes=1 --output_dir=b",
    "compare a b",
    "report a --card",
    "audit a --episodes=1",
    "list",
    "info",
    "eval --resume --output_dir=a",
)
"""Commands that `pip install proctor` alone can run."""
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


def test_an_evaluation_without_datasets_needs_no_optional_package(tmp_path: Path) -> None:
    """As after ``pip install proctor`` alone."""
    script = f"""
import sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            return None
        return self.finder.find_spec(name, path, target)
sys.meta_path = [Hiding(finder) for finder in sys.meta_path]
from proctor.cli import main
for line in sys.stdin.read().splitlines():
    assert main(line.split("\\t")) == 0, line
"""
    lines = "\n".join(line.replace(" ", "\t") for line in BASE_COMMANDS)
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=lines, capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_one_module_imports_pyarrow() -> None:
    importers = [
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import)
        if any(alias.name.split(".")[0] == "pyarrow" for alias in node.names)
    ]
    assert set(importers) == {"datasets/format/arrow.py"}
