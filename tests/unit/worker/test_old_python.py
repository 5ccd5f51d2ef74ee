"""The worker's loop runs in Python 3.8 too, in the interpreter of a simulator.

The last test needs such a Python with numpy: beside this one, on the path, or PROCTOR_OLD_PYTHON.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from proctor.evaluation.run import Evaluation
from proctor.types import Outcome
from tests.conftest import digests
from tests.unit.worker.point_world import PointConfig

ROOT = Path(__file__).parents[3]
PROGRAM = f"""
import sys, types
try:
    import numpy
except ImportError:
    sys.modules["numpy"] = types.SimpleNamespace(ndarray=object)
sys.path.insert(0, {str(ROOT / "src")!r})
import proctor.engine.worker.worker
print(*(m.__file__ for name, m in sys.modules.items() if name.startswith("proctor")), sep="\\n")
"""


def imported_files(python: str) -> list[Path]:
    """Return the files that the worker's module imports, itself included."""
    done = subprocess.run([python, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines()]


def runs(python: str, program: str) -> bool:
    return subprocess.run([python, "-c", program], capture_output=True).returncode == 0


def old_pythons() -> list[str]:
    """Return the interpreters before Python 3.11, the oldest first."""
    given = os.environ.get("PROCTOR_OLD_PYTHON")
    found = [] if given is None else [given]
    for name in ("python3.8", "python3.9", "python3.10"):
        found += map(str, Path(sys.base_prefix).parent.glob(f"*/bin/{name}"))
        found += filter(None, [shutil.which(name)])
    return [python for python in found if runs(python, "")]


def test_every_module_of_the_loop_is_declared_and_written_for_python_3_8() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    globs = {
        pattern: re.sub(r"\{(.*)\}", lambda names: f"({names[1].replace(',', '|')})", pattern)
        for pattern in declared["per-file-target-version"]
    }
    known = re.compile(
        "|".join(glob.replace(".", r"\.").replace("**", ".*") for glob in globs.values())
    )
    for file in imported_files(sys.executable):
        assert known.fullmatch(str(file.relative_to(ROOT))), file
        text = file.read_text(encoding="utf-8")
        ast.parse(text, feature_version=(3, 8))
        assert not re.search(
            r"\b(remove(pre|suf)fix|is_relative_to)\b|\b(strict|kw_only|slots)=", text
        )


def test_an_old_interpreter_imports_the_loop() -> None:
    pythons = old_pythons()
    if not pythons:
        pytest.skip("no Python before 3.11 is installed")
    assert imported_files(pythons[0])


def test_an_old_interpreter_runs_the_same_episodes(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    pythons = [python for python in old_pythons() if runs(python, "import numpy")]
    if not pythons:
        pytest.skip("no Python before 3.11 has numpy; PROCTOR_OLD_PYTHON names one")
    world = {"env__type": PointConfig.type, "env__python": pythons[0]}
    inputs = {"policy__inputs": ["observation.image"], "policy__n_action_steps": 3}
    killed = run(**world, **inputs, env__faults={"0/1/3": "kill"}, env__once_in=str(tmp_path))
    assert digests(killed) == digests(run(**inputs))
    broken = run(**world, env__faults={"0/1/3": "raise"}, video__episodes=1)
    diverged = {row.key: row for row in broken.rows}["point", 0, 1]
    assert (diverged.outcome, diverged.steps, diverged.attempts) == (Outcome.DIVERGED, 3, 2)
    assert "local_sim.py" in str(diverged.error)  # no second process
