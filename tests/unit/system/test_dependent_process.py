"""A dependent process runs a module, and ends with the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import sys, time
print(__name__, sys.argv[1:], repr(sys.stdin.read()), flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def start(tmp_path):
    (tmp_path / "some_module.py").write_text(MODULE)

    def start(seconds: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3] / "src")])
        return subprocess.Popen(
            [sys.executable, "-m", "proctor.system.dependent_process", "some_module", seconds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    return start


def test_it_runs_a_module_with_its_arguments_and_an_empty_input(start):
    with start("0") as process:
        assert process.stdout.read() == "__main__ ['0'] ''\n"
        assert process.wait(30) == 0


def test_it_ends_once_its_starter_is_gone(start):
    with start("600") as process:
        assert process.stdout.readline()
        process.stdin.close()  # as the kernel does for a killed starter
        assert process.wait(30) == 1
