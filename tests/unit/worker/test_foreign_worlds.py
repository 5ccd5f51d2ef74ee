"""A world in another interpreter has the same episodes, faults and rules as one in a worker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from proctor.benchmarks.isolated import benchmark
from proctor.benchmarks.isolated.launch import command_words
from proctor.cli import main
from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation
from proctor.types import Outcome
from tests.conftest import digests
from tests.refusals import refuses
from tests.unit.worker.point_world import PointConfig

WORLD = {"env__type": PointConfig.type, "env__python": sys.executable}
BROKEN = ("point", 0, 1)
IMAGES = {
    "policy__inputs": ["observation.image", "observation.state"],
    "policy__n_action_steps": 7,
    "policy__n_obs_steps": 2,
}


def comparable(evaluation: Evaluation) -> Any:
    """Return digests, the number of rendered images, and starts."""
    rows = sorted(evaluation.rows, key=lambda row: row.key)
    assert all(row.start is not None and row.start.names for row in rows)
    return digests(evaluation), [(row.key, row.renders, row.start) for row in rows]


def test_episodes_are_those_of_an_ordinary_worker_with_chunks_images_and_resume(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    here = run(**IMAGES, env__episode_length=50)
    folder = str(tmp_path / "there")
    there = run(**IMAGES, **WORLD, env__image_size=16, output_dir=folder)
    assert comparable(there) == comparable(here)
    protocol = json.loads(Path(folder, "run.json").read_text())["protocol"]
    interpreter = protocol["benchmark"]["interpreter"]
    assert interpreter["python"] == "{}.{}".format(*sys.version_info)
    assert "numpy" in interpreter["distributions"]
    journal = Path(folder, "episodes.jsonl")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:2]))
    again = run(**IMAGES, **WORLD, env__image_size=16, output_dir=folder, resume=True)
    assert comparable(again) == comparable(here)
    code = f"--env.type={PointConfig.type}"
    assert main(["audit", folder, "--episodes=2", code]) == 2  # a file names no program to run
    assert main(["audit", folder, "--episodes=2", code, f"--env.python={sys.executable}"]) == 0


def test_a_benchmark_of_ours_and_its_expert_run_there_too(run: Callable[..., Evaluation]) -> None:
    here = run(policy__type="expert")
    there = run(policy__type="expert", env__python=sys.executable, eval__use_async_envs=False)
    assert digests(there) == digests(here)


def test_a_benchmark_of_ours_needs_only_its_simulators_packages_there() -> None:
    program = (
        "import sys\n"
        "for name in ('msgspec', 'av', 'torch', 'rich', 'psutil'): sys.modules[name] = None\n"
        "import proctor.benchmarks.isolated.builtin_world, proctor.benchmarks.metaworld.benchmark\n"
        "import proctor.benchmarks.gym.elsewhere, proctor.engine.worker.worker\n"
        "import proctor.policies.scripted.expert\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture(params=[False, True], ids=["worker moves", "worker stays"])
def stays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run workers in the world's interpreter, or at home as on other systems than Linux."""
    if request.param:
        monkeypatch.setattr(benchmark, "worker_interpreter", lambda *_: None)


@pytest.mark.usefixtures("stays")
def test_the_world_follows_its_own_expert_until_it_fails(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    expert = {"policy__type": "expert", "env__episode_length": 30}
    here = run(**expert)
    kills = {"0/1/3": "kill", "0/2/1": "kill"}
    there = run(**expert, **WORLD, env__faults=kills, env__once_in=str(tmp_path))
    assert digests(there) == digests(here)
    broken = run(**expert, **WORLD, env__faults={"0/1/3": "raise"})
    diverged = {row.key: row for row in broken.rows}[BROKEN]
    assert (diverged.outcome, diverged.steps, diverged.attempts) == (Outcome.DIVERGED, 3, 2)


def test_a_command_that_shares_nothing_gives_the_same_episodes(
    run: Callable[..., Evaluation],
) -> None:
    noisy = f"env -i /bin/sh -c 'echo hello; exec {sys.executable} \"$@\"' sh"
    there = run(**IMAGES, env__type=PointConfig.type, env__command=noisy, env__image_size=100)
    assert digests(there) == digests(run(**IMAGES))


def test_a_worker_returns_to_our_interpreter_for_videos(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    folder = tmp_path / "filmed"
    there = run(**WORLD, video__episodes=1, output_dir=str(folder))
    assert digests(there) == digests(run())
    assert len(list(folder.glob("videos/**/*.mp4"))) == 1


@pytest.mark.usefixtures("stays")
@pytest.mark.parametrize("fault", ["raise", "segfault", "exit", "hang"])
def test_a_fault_that_recurs_is_the_policys(run: Callable[..., Evaluation], fault: str) -> None:
    evaluation = run(
        **WORLD,
        policy__n_action_steps=5,
        env__faults={"0/1/3": fault},
        eval__watchdog_s=3.0 if fault == "hang" else 120.0,
    )
    broken = {row.key: row for row in evaluation.rows}[BROKEN]
    assert (broken.outcome, broken.steps, broken.attempts) == (Outcome.DIVERGED, 3, 2)
    assert broken.error
    if fault == "raise":
        assert broken.error.endswith("RuntimeError: the world broke at 0/1/3")
        assert "point.py" in broken.error


@pytest.mark.usefixtures("stays")
def test_after_a_kill_the_episode_is_tried_again_with_the_same_bits(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    faults = {"0/1/3": "kill", "0/2/5": "kill"}
    evaluation = run(**WORLD, env__faults=faults, env__once_in=str(tmp_path))
    assert digests(evaluation) == digests(run())
    attempts = {row.key[2]: row.attempts for row in evaluation.rows}
    assert attempts == {0: 1, 1: 2, 2: 2, 3: 1}


def test_a_python_that_is_too_old_for_proctor_runs_the_worker_too(
    run: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark, "OUR_PYTHON", (99, 0))
    kills = {"0/1/3": "kill", "0/2/5": "kill"}
    killed = run(**IMAGES, **WORLD, env__faults=kills, env__once_in=str(tmp_path))
    assert comparable(killed) == comparable(run(**IMAGES))
    broken = run(**WORLD, env__faults={"0/1/3": "raise"}, video__episodes=1)
    diverged = {row.key: row for row in broken.rows}[BROKEN]
    assert (diverged.outcome, diverged.steps, diverged.attempts) == (Outcome.DIVERGED, 3, 2)
    assert "local_sim.py" in str(diverged.error)  # no second process


def test_the_process_does_not_outlive_its_worker(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from proctor.benchmarks.isolated.launch import Launch\n"
        "from proctor.benchmarks.isolated.world_process import WorldProcess\n"
        "launch = Launch('proctor_worker.worlds.point:make', {}, sys.executable)\n"
        "world = WorldProcess(launch, {})\n"
        "print(world._started.process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        assert psutil.pid_exists(pid)
        os.kill(pid, signal.SIGSTOP)  # it cannot end by itself
        worker.kill()
    ended = time.monotonic() + 60
    while psutil.pid_exists(pid) and time.monotonic() < ended:
        time.sleep(0.02)
    assert not psutil.pid_exists(pid)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


def test_what_is_no_interpreter_is_refused_in_one_line(
    run: Callable[..., Evaluation], script: Callable[[str], str], tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    cases = {
        str(tmp_path / "none"): "env.no-interpreter",
        str(tmp_path): "env.no-interpreter",  # a folder without bin/python
        str(plain): "env.no-interpreter",
        shutil.which("true") or "/bin/true": "env.interpreter-failed",
        script(f'exec {sys.executable} -I -S "$@"'): "env.no-numpy",
    }
    for python, code in cases.items():
        with refuses(UsageError, code) as refused:
            run(env__type=PointConfig.type, env__python=python)
        assert "\n" not in str(refused.value)


def test_a_world_that_refuses_or_fails_is_told_in_one_line(run: Callable[..., Evaluation]) -> None:
    with refuses(UsageError, "env.cannot-open") as refused:
        run(**WORLD, env__refuse="no licence")
    assert "no licence" in str(refused.value)
    with refuses(UsageError, "env.cannot-open") as refused:
        run(**WORLD, env__faults={"make": "raise"})
    assert "ValueError" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_flags_that_name_no_interpreter_are_refused(run: Callable[..., Evaluation]) -> None:
    with refuses(UsageError, "benchmark.not-installed"):
        run(env__type=PointConfig.type)
    with refuses(UsageError, "env.no-interpreter"):
        command_words("no-such-program -i")
    with refuses(UsageError, "flag.invalid-value"):
        command_words("ssh 'host")
    if shutil.which("ssh"):
        assert command_words("ssh host python3")[-1] == "'exec(input())'"
