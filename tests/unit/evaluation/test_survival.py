"""Regressions that `make chaos` found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim, Fault
from proctor.benchmarks.guarded_sim import GuardedSim
from proctor.callbacks.journal_writer import EffortLog
from proctor.engine.processes.forking import start_fork_server
from proctor.engine.processes.pool import ProcessPool
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.transport.messages import WorkerReady
from proctor.engine.transport.shared_memory import ObservationBuffer
from proctor.engine.worker.episode import Episode
from proctor.errors import RunFolderError, SimulatorFault
from proctor.features import ActionSpec, Feature, FeatureKind
from proctor.runs.folder import write_run_file
from proctor.runs.journal import read_journal
from proctor.runs.records import RunProgress
from tests.processes import children_of
from tests.refusals import refuses
from tests.unit.commands.test_cli import LONG_RUN, PROCTOR, wait_for_episodes

STATE = {"observation.state": Feature(FeatureKind.STATE, (2,), "float32")}


@pytest.fixture
def near() -> Iterator[Path]:
    """A folder with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as folder:
        yield Path(folder)


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a long run in a session of its own, with its own temporary folder."""
    temporary = folder.parent / "tmp"
    temporary.mkdir()
    given = {word.split("=")[0] for word in words}
    return subprocess.Popen(
        [*PROCTOR, *[word for word in LONG_RUN if word.split("=")[0] not in given], *words,
         f"--output_dir={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
    )  # fmt: skip


def fork_server_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    (server,) = children_of(process.pid, "forkserver")
    return server


def test_a_killed_parent_takes_a_stopped_worker_and_its_socket_with_it(near: Path) -> None:
    process = start(near / "run")
    wait_for_episodes(near / "run", 2)
    server = fork_server_of(process)
    family = [server, *server.children()]
    assert len(family) == 3
    assert list((near / "tmp").iterdir()), "there is a socket to be removed"
    family[1].suspend()
    process.kill()
    process.wait()
    assert psutil.wait_procs(family, timeout=60)[1] == []
    assert list((near / "tmp").iterdir()) == []


def test_a_killed_fork_server_is_replaced_by_one_like_it(near: Path) -> None:
    process = start(near / "run", "--env.step_ms=5")
    wait_for_episodes(near / "run", 2)
    first = fork_server_of(process)
    threads = first.environ()["OPENBLAS_NUM_THREADS"]
    first.kill()
    second = first
    deadline = time.monotonic() + 60
    while second.pid == first.pid:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        second = next(iter(children_of(process.pid, "forkserver")), first)
    assert second.environ()["OPENBLAS_NUM_THREADS"] == threads == "1"
    assert process.wait(120) == 0
    assert list((near / "tmp").iterdir()) == []


def test_a_fork_server_that_dies_while_it_forks_is_replaced() -> None:
    start_fork_server(Fake.preload, {})
    (server,) = children_of(None, "forkserver")
    settings = RolloutSettings(partial(Fake, FakeConfig()), ActionSpec(2))
    pool = ProcessPool(settings, ObservationBuffer(1, {}, 1))
    server.suspend()  # so that it accepts the request and does not reply
    threading.Timer(0.3, server.kill).start()
    pool.start(0)
    assert pool.poll(60.0) == [(0, WorkerReady())]
    pool.close()


def test_ctrl_c_while_the_fork_server_starts_shows_no_traceback() -> None:
    program = (
        "import signal, psutil\n"
        "from pathlib import Path\n"
        "from proctor.engine.processes.forking import start_fork_server\n"
        "start_fork_server((), {})\n"
        "assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        "(server,) = [c for c in psutil.Process().children() if 'forkserver' in str(c.cmdline())]\n"
        "print(Path(f'/proc/{server.pid}/status').read_text())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    masks = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    deaf = int(masks["SigBlk"], 16) | int(masks["SigIgn"], 16)
    assert deaf & (1 << (signal.SIGINT - 1))


def test_a_pause_is_not_taken_for_a_hang(tmp_path: Path) -> None:
    """The steps are short and the limit is long: only the pause comes near it."""
    slow = ["--env.step_ms=100", "--env.episode_length=20", "--env.n_tasks=1"]
    process = start(tmp_path / "run", *slow, "--eval.n_episodes=4", "--eval.watchdog_s=4")
    wait_for_episodes(tmp_path / "run", 2)
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(4.5)
    os.kill(process.pid, signal.SIGCONT)  # the parent looks before any worker has moved
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGCONT)
    assert process.wait(120) == 0
    assert {row.attempts for row in read_journal(tmp_path / "run").rows} == {1}


@pytest.mark.skipif(sys.platform != "linux", reason="a memfd is Linux's")
def test_nobody_can_cut_the_shared_memory_off() -> None:
    arena = ObservationBuffer(2, STATE, n_obs_steps=1)
    with Path(f"/proc/self/fd/{arena._fd}").open("r+b") as file, pytest.raises(PermissionError):
        os.ftruncate(file.fileno(), 0)
    arena.close()


@pytest.mark.skipif(sys.platform != "linux", reason="a memfd is Linux's")
def test_shared_memory_has_no_name_that_could_be_removed() -> None:
    arena = ObservationBuffer(2, STATE, n_obs_steps=1)
    assert str(Path(f"/proc/self/fd/{arena._fd}").readlink()).startswith("/memfd:")
    arena.close()


def test_a_reward_that_is_no_number_breaks_the_simulator_not_the_policy() -> None:
    config = FakeConfig(faults={"0/0/2": Fault.NAN})
    benchmark = Fake(config)
    task = benchmark.tasks()[0]
    sim = GuardedSim(FakeSim(config, task), benchmark.features())
    episode = Episode(sim, benchmark.spec(task, 0, 7), benchmark.action)
    episode.reset()
    episode.step(np.zeros(2))
    with refuses(SimulatorFault, "worker.simulator-fault") as refused:
        episode.step(np.zeros(2))
    assert "reward" in str(refused.value)


def test_a_session_log_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    log = EffortLog(tmp_path)
    log.on_progress(RunProgress(1.0, 2, 3, 4))
    (tmp_path / "sessions.jsonl").mkdir()
    with pytest.raises(RunFolderError) as refused:
        log.close()
    assert "sessions.jsonl" in str(refused.value)


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interruption comes while the content is written: before the file has its name."""

    def interrupted(fd: int) -> None:
        raise KeyboardInterrupt

    write_run_file(tmp_path / "run.json", "old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_run_file(tmp_path / "run.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_text() == "old"
