"""The engine when its parts are stopped, closed or killed at the wrong moment."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.callbacks.base import Callback, close_all
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.sections.evaluation import RolloutConfig
from proctor.engine.processes.forking import ensure_fork_server
from proctor.engine.processes.in_process import InProcessPool
from proctor.engine.processes.pool import ProcessPool
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.transport.channel import make_channel
from proctor.engine.transport.messages import Report, StartEpisode, WorkerFailed, WorkerReady
from proctor.engine.transport.shared_memory import ObservationBuffer
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import Evaluation, run_evaluation
from proctor.features import ActionSpec
from proctor.types import EpisodeResult, Task
from tests.processes import children_of

TAME = partial(Fake, FakeConfig())


def poll_until_reported(pool: ProcessPool, most_s: float = 60.0) -> list[tuple[int, Report]]:
    until = time.monotonic() + most_s
    while time.monotonic() < until:
        reports = pool.poll(0.1)
        if reports:
            return reports
    return []


def settings_of(make_benchmark: Callable[[], Fake], watchdog_s: float = 60.0) -> RolloutSettings:
    flags = RolloutConfig(watchdog_s=watchdog_s)
    return RolloutSettings(make_benchmark, ActionSpec(2), flags=flags)


def open_descriptors() -> int:
    """Count open descriptors after garbage collection: a traceback may hold a buffer's frame.

    The fork server's descriptors stay open from the first worker to the end of this process.
    """
    ensure_fork_server({})
    gc.collect()
    return psutil.Process().num_fds()


def test_waking_a_closed_pool_writes_into_no_ones_file(tmp_path: Path) -> None:
    pool = ProcessPool(settings_of(TAME), ObservationBuffer(1, {}, 1))
    pool.close()
    files = [(tmp_path / str(i)).open("wb", buffering=0) for i in range(20)]
    pool.wake()  # as the policy's thread does after Ctrl-C
    for file in files:
        file.close()
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0] * 20


def test_a_stopped_worker_holds_up_no_order_and_is_killed_by_the_watchdog() -> None:
    pool = ProcessPool(settings_of(TAME, watchdog_s=0.5), ObservationBuffer(1, {}, 1))
    pool.start(0)
    assert poll_until_reported(pool) == [(0, WorkerReady())]
    pid = pool._slots[0].process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    rescue = threading.Timer(90.0, os.kill, (pid, signal.SIGKILL))  # else a failing test would hang
    rescue.start()
    spec = Fake(FakeConfig()).spec(Fake(FakeConfig()).tasks()[0], 0, 0)
    pool.send(
        0, StartEpisode(spec, actions=np.zeros((500_000, 2), np.float32))
    )  # more than a pipe takes
    ((slot, report),) = poll_until_reported(pool)
    rescue.cancel()
    pool.close()
    assert slot == 0
    assert isinstance(report, WorkerFailed)
    assert "0.5 s" in report.reason


class SlowStart(Fake):
    """Takes longer to be made than the watchdog's limit."""

    def __init__(self, config: FakeConfig) -> None:
        time.sleep(1.0)
        super().__init__(config)


def test_a_worker_that_starts_slowly_is_not_taken_for_one_that_hangs() -> None:
    settings = settings_of(partial(SlowStart, FakeConfig()), watchdog_s=0.3)
    pool = ProcessPool(settings, ObservationBuffer(1, {}, 1))
    pool.start(0)
    reports = poll_until_reported(pool)
    pool.close()
    assert reports == [(0, WorkerReady())]


def test_a_terminal_that_hangs_up_ends_neither_fork_server_nor_resource_tracker() -> None:
    program = (
        "import signal, psutil\n"
        "from proctor.engine.processes.forking import start_fork_server\n"
        "start_fork_server((), {})\n"
        "children = psutil.Process().children()\n"
        "for child in children:\n"
        "    child.send_signal(signal.SIGHUP)\n"
        "gone, alive = psutil.wait_procs(children, timeout=0.5)\n"
        "print(len(gone), len(alive))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "0 2\n", done.stderr


def test_a_message_longer_than_the_line_takes_arrives_whole_and_one_cut_short_never() -> None:
    ours, theirs = make_channel()
    large = np.arange(1_000_000)
    ours.post("small")
    ours.post(large)
    assert ours.waiting
    taken: list[Any] = []
    reader = threading.Thread(target=lambda: taken.extend([theirs.recv(), theirs.recv()]))
    reader.start()
    while ours.waiting:
        ours.flush()
    reader.join()
    assert taken[0] == "small"
    np.testing.assert_array_equal(taken[1], large)

    assert ours.collect() == []
    theirs.send("a")
    theirs.send("b")
    theirs._line.send(b"\0\0\0\0\0\0\0\x09half")
    assert ours.collect() == ["a", "b"]
    theirs.close()
    with pytest.raises(EOFError):
        ours.collect()
    ours.close()


class Listener(Callback):
    """A callback that calls the test's functions when episodes end or it is closed."""

    def __init__(
        self,
        on_episode: Callable[[EpisodeResult], None] = lambda result: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_episode, self._on_close = on_episode, on_close

    def on_episode_end(self, result: EpisodeResult) -> None:
        self._on_episode(result)

    def close(self) -> None:
        self._on_close()


def listened(folder: Path, *listeners: Listener, **flags: Any) -> Evaluation:
    settings = {"policy.type": "random", "env.type": "fake", "video.episodes": 0,
                "output_dir": str(folder)}  # fmt: skip
    settings |= {name.replace("__", "."): value for name, value in flags.items()}
    prepared = prepare(build(EvalConfig, settings))
    return run_evaluation(prepared, settings, lambda before, how: list(listeners))


def test_a_fork_server_that_dies_while_workers_are_idle_costs_retries_only(
    tmp_path: Path,
) -> None:
    ended: list[EpisodeResult] = []

    def kill_when_five_are_idle(result: EpisodeResult) -> None:
        ended.append(result)
        if len(ended) == 5:
            for server in children_of(None, "forkserver"):
                server.kill()

    evaluation = listened(
        tmp_path / "run",
        Listener(kill_when_five_are_idle),
        env__faults={"0/0/1": "stop"},  # stands for a slow episode
        env__break_once_in=str(tmp_path),
        eval__n_episodes=6,
        eval__batch_size=6,
        eval__max_retries=10,  # the retry may go to an idle worker that is about to die
    )
    assert evaluation.complete
    assert (evaluation.tally.episodes, evaluation.tally.errors) == (6, 0)
    assert {row.episode_index: row.attempts for row in evaluation.rows}[0] >= 2


def broken_close() -> None:
    raise OSError("no space left")


def test_one_recorder_that_fails_to_close_leaves_no_other_open(tmp_path: Path) -> None:
    closed = []
    listeners = (Listener(on_close=broken_close), Listener(on_close=lambda: closed.append("last")))
    descriptors = open_descriptors()
    with pytest.raises(OSError, match="no space left"):
        listened(tmp_path / "run", *listeners, eval__use_async_envs=False)
    assert closed == ["last"]
    assert open_descriptors() == descriptors


def test_the_first_error_of_closing_is_the_one_that_is_raised() -> None:
    def second() -> None:
        raise ValueError("second")

    with pytest.raises(OSError, match="no space left"):
        close_all([Listener(), Listener(on_close=broken_close), Listener(on_close=second)])


class NeverCloses(FakeSim):
    """Fails to close."""

    closed = 0

    def close(self) -> None:
        NeverCloses.closed += 1
        raise RuntimeError("the context is gone")


class NeverClosesBenchmark(Fake):
    """The fake benchmark with that simulator."""

    def make_sim(self, task: Task) -> FakeSim:
        return NeverCloses(self._config, task)


NEVER_CLOSES = BenchmarkPlugin(FakeConfig, NeverClosesBenchmark, "cannot be closed")


def test_simulators_that_fail_to_close_are_all_asked_to_and_leak_no_descriptor(
    tmp_path: Path,
) -> None:
    descriptors, NeverCloses.closed = open_descriptors(), 0
    with pytest.raises(RuntimeError, match="the context is gone"):
        listened(
            tmp_path / "run",
            env__type="tests.unit.engine.test_under_strain:NEVER_CLOSES",
            eval__n_episodes=3,
            eval__batch_size=3,
            eval__use_async_envs=False,
        )
    assert NeverCloses.closed == 3
    assert open_descriptors() == descriptors


def test_a_pool_closes_all_its_simulators_whatever_becomes_of_the_first() -> None:
    settings = settings_of(partial(NeverClosesBenchmark, FakeConfig()))
    pool = InProcessPool(settings, ObservationBuffer(2, {}, 1))
    spec = Fake(FakeConfig()).spec(Fake(FakeConfig()).tasks()[0], 0, 0)
    NeverCloses.closed = 0
    for slot in (0, 1):
        pool.start(slot)
        pool.send(slot, StartEpisode(spec))
    with pytest.raises(RuntimeError):
        pool.close()
    assert NeverCloses.closed == 2


class StickyPool(ProcessPool):
    """Fails with every worker that it removes."""

    def _remove(self, slot: int) -> None:
        there = slot in self._slots
        super()._remove(slot)
        if there:
            raise OSError("no such process")


def test_a_pool_that_has_trouble_with_one_worker_ends_the_others_and_keeps_no_descriptor() -> None:
    buffer = ObservationBuffer(2, {}, 1)
    descriptors = open_descriptors()
    pool = StickyPool(settings_of(TAME), buffer)
    for slot in (0, 1):
        pool.start(slot)
    processes = [psutil.Process(worker.process.pid) for worker in pool._slots.values()]
    with pytest.raises(OSError, match="no such process"):
        pool.close()
    assert psutil.wait_procs(processes, timeout=60.0)[1] == []
    assert open_descriptors() == descriptors - 1, "the pool closes its observation buffer"


def test_an_engine_that_cannot_be_made_keeps_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("proctor.evaluation.executor.ThreadInference", no_thread)
    descriptors = open_descriptors()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        listened(tmp_path / "run")
    assert open_descriptors() == descriptors


def test_a_log_that_cannot_be_opened_ends_no_worker(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom proctor.engine.worker import worker\n"
        "worker._detach_from_terminal(Path(sys.argv[1]))\nprint('into nothing')\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "gone/workers.log")]
    done = subprocess.run(words, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
