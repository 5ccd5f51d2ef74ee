"""The doctor and the choice of a GL backend with the real MuJoCo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from proctor.machine.gl import find_gl_backend

pytest.importorskip("mujoco")
pytestmark = pytest.mark.sim
PROCTOR = [sys.executable, "-m", "proctor.cli"]


def proctor(*words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    return subprocess.run([*PROCTOR, *words], capture_output=True, text=True, env=env, check=False)


@pytest.mark.slow  # its parts have tests; a frame of 480x480 takes a second in software
def test_the_doctor_times_what_renders_here_and_its_exit_code_agrees() -> None:
    backend = find_gl_backend()
    done = proctor("doctor")
    assert done.returncode == (backend is None), done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    if backend is not None:
        assert re.search(rf"^ok    {backend} +[\d.,]+ ms a frame of 480x480", done.stdout, re.M)
        assert f"ok    rendering  {backend}" in done.stdout


def test_an_evaluation_says_what_it_renders_with_when_it_needs_images(tmp_path: Path) -> None:
    pytest.importorskip("metaworld")
    if find_gl_backend() is None:
        pytest.skip("nothing here can render")
    words = [
        "eval", "--env.type=metaworld", "--env.task=reach-v3", "--env.episode_length=2",
        "--eval.n_episodes=1", "--policy.type=random", "--env.shadow_map=0",
    ]  # fmt: skip
    blind = proctor(*words, f"--output_dir={tmp_path / 'blind'}")
    assert "rendering with" not in blind.stderr, blind.stderr
    seeing = proctor(
        *words, "--policy.inputs=observation.image", f"--output_dir={tmp_path / 'seeing'}"
    )
    assert seeing.returncode == 0, seeing.stderr
    assert seeing.stderr.startswith(f"rendering with {find_gl_backend()}")
