"""The doctor and the choice of a GL backend with the real MuJoCo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.system.graphics.gl import find_gl_backend

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


def test_an_evaluation_says_what_it_renders_with_when_it_needs_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("metaworld")
    if find_gl_backend() is None:
        pytest.skip("nothing here can render")
    words = [
        "eval", "--env.type=metaworld", "--env.task=reach-v3", "--env.episode_length=2",
        "--eval.n_episodes=1", "--policy.type=random", "--env.shadow_map=0",
        "--eval.use_async_envs=false",
    ]  # fmt: skip
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    assert main([*words, f"--output_dir={tmp_path / 'blind'}"]) == 0
    assert "rendering with" not in capsys.readouterr().err
    looking = "--policy.inputs=observation.image"
    assert main([*words, looking, f"--output_dir={tmp_path / 'seeing'}"]) == 0
    assert capsys.readouterr().err.startswith(f"rendering with {find_gl_backend()}")
