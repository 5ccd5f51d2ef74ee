"""Workers that open a simulator and render its first image while the policy is being loaded.

Making a renderer and importing torch take seconds each, and neither needs the other. A warm worker
is forked before the run's settings are known, opens the simulator that the scheduler will ask for
first, and then waits until a pool hands over the settings. If it cannot open the simulator, or the
run needs another one, it works as any other worker.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.context import ForkServerProcess
from typing import Any

from proctor.benchmarks.base import AnnouncedSim, Benchmark, Sim
from proctor.engine.processes.forking import without_main_module
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.transport.channel import EngineEnd, WorkerEnd
from proctor.engine.transport.shared_memory import ObservationBuffer
from proctor.engine.worker.worker import exit_with_parent, worker_main
from proctor.features import Array, Observation
from proctor.system.global_rng import (
    SEED_BEFORE_RESET,
    global_rng_state,
    seed_global_rng,
    set_global_rng_state,
)
from proctor.types import EpisodeSpec, StepResult, Task

_MEMORY = b"m"
"""Byte that carries the descriptor of the observation buffer."""


@dataclass(frozen=True)
class FirstEpisode:
    """An episode whose first image a warm worker renders. Picklable."""

    make_benchmark: Callable[[], Benchmark]
    spec: EpisodeSpec
    keys: tuple[str, ...]


class WarmWorkers:
    """The warm workers of one run, by slot: at most one set in a process."""

    def __init__(self, episodes: Sequence[FirstEpisode]) -> None:
        self._episodes = episodes
        self._environment: Mapping[str, str] = {}
        self._workers: dict[int, tuple[ForkServerProcess, socket.socket]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._started = threading.Event()

    def start(self, environment: Mapping[str, str]) -> None:
        """Fork the workers, which have the variables ``environment`` set. May run on any thread."""
        try:
            self._fork(environment)
        finally:
            self._started.set()

    def skip(self) -> None:
        """Start no workers: those that wait for ``start`` need not."""
        self._started.set()

    def _fork(self, environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        for slot, episode in enumerate(self._episodes):
            with self._lock:
                if self._closed:
                    return
                ours, theirs = socket.socketpair()
                process = context.Process(
                    target=_warm_worker_main,
                    args=(WorkerEnd(theirs), episode, dict(environment)),
                    name=f"proctor-worker-{slot}",
                    daemon=True,
                )
                with contextlib.suppress(EOFError, OSError):  # the pool's own start reports it
                    with without_main_module():
                        process.start()
                    self._environment, self._workers[slot] = environment, (process, ours)
                theirs.close()

    def take(
        self, settings: RolloutSettings, buffer: ObservationBuffer, slot: int
    ) -> tuple[ForkServerProcess, EngineEnd] | None:
        """Return the worker of ``slot``, which now follows ``settings``; None: it has none."""
        if all(one.make_benchmark is not settings.make_benchmark for one in self._episodes):
            return None
        self._started.wait()
        with self._lock:
            if self._environment != settings.environment:
                return None
            process, line = self._workers.pop(slot, (None, None))
        if process is None or line is None:
            return None
        try:
            socket.send_fds(line, [_MEMORY], [buffer.fileno()])
        except OSError:  # it died
            _end(process, line)
            return None
        orders = EngineEnd(line)
        orders.post((settings, buffer.n_slots, slot))
        return process, orders

    def close(self) -> None:
        """End the workers that no pool has taken."""
        with self._lock:
            self._closed = True
            left, self._workers = self._workers, {}
        for process, line in left.values():
            _end(process, line)


class _Current:
    """The warm workers of this process."""

    workers: WarmWorkers | None = None


def use_warm_workers(workers: WarmWorkers) -> None:
    """Let the next pool take ``workers``, in place of earlier ones."""
    close_warm_workers()
    _Current.workers = workers


def take_warm_worker(
    settings: RolloutSettings, buffer: ObservationBuffer, slot: int
) -> tuple[ForkServerProcess, EngineEnd] | None:
    """Return a warm worker for ``slot`` that follows ``settings``; None: there is none."""
    workers = _Current.workers
    return None if workers is None else workers.take(settings, buffer, slot)


def close_warm_workers() -> None:
    """End the warm workers that no pool has taken."""
    workers, _Current.workers = _Current.workers, None
    if workers is not None:
        workers.close()


def _end(process: ForkServerProcess, line: socket.socket) -> None:
    line.close()
    process.kill()
    process.join()
    process.close()


def _warm_worker_main(orders: WorkerEnd, first: FirstEpisode, environment: dict[str, str]) -> None:
    """Open the simulator of ``first``, wait for the settings, and become a worker."""
    exit_with_parent()
    os.environ.update(environment)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        opened: _OpenBenchmark | None = None
        with contextlib.suppress(Exception):  # it repeats with the first episode, which reports it
            opened = _OpenBenchmark(first)
        line = socket.socket(fileno=os.dup(orders.fileno()))
        try:
            _, descriptors, _, _ = socket.recv_fds(line, len(_MEMORY), 1)
            settings, n_slots, slot = orders.recv()
        except (EOFError, OSError):  # the parent does not need this worker
            os._exit(0)
        line.close()
        window = (settings.features, settings.n_obs_steps)
        buffer = ObservationBuffer(n_slots, *window, fd=descriptors[0])
        if opened is not None:
            settings = replace(settings, make_benchmark=partial(_identity, opened))
        _append(log, settings.log_file)
    worker_main(orders, settings, buffer, slot)


class _OpenBenchmark:
    """A benchmark with one simulator open, which its first ``make_sim`` of that task returns."""

    def __init__(self, first: FirstEpisode) -> None:
        self._benchmark = first.make_benchmark()
        self._task = self._benchmark.sim_task(first.spec.task)
        seed_global_rng(SEED_BEFORE_RESET)
        self._sim: Sim | None = self._benchmark.make_sim(self._task)
        _begin_early(self._sim, first)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._benchmark, name)

    def make_sim(self, task: Task) -> Sim:
        """Return the open simulator if it is one of ``task``, else a new one."""
        sim, self._sim = self._sim, None
        if sim is not None and task == self._task:
            return sim
        if sim is not None:
            sim.close()
        return self._benchmark.make_sim(task)


def _begin_early(sim: Sim, first: FirstEpisode) -> None:
    """Reset ``sim`` and observe, so that its next reset to the same episode has nothing to do.

    The global random generators are then in the state that they have after a reset. A simulator
    whose resets are announced is reset again.
    """
    seed_global_rng(first.spec.seed)
    sim.reset(first.spec)
    after_reset = global_rng_state()
    seen = sim.observe(first.keys)
    after_observing = global_rng_state()
    if not isinstance(sim, AnnouncedSim) and hasattr(sim, "__dict__"):
        _EarlyObservation(sim, first.spec, seen, (after_reset, after_observing))


class _EarlyObservation:
    """Answers the next reset and observation of a simulator that was reset and observed early.

    It hides the simulator's own methods until the episode has begun.
    """

    def __init__(
        self, sim: Sim, spec: EpisodeSpec, seen: Observation, rng_states: tuple[Any, Any]
    ) -> None:
        self._sim, self._spec, self._seen, self._rng_states = sim, spec, seen, rng_states
        vars(sim).update(reset=self._reset, observe=self._observe, step=self._step)

    def _reveal(self) -> None:
        for name in ("reset", "observe", "step"):
            vars(self._sim).pop(name, None)

    def _reset(self, spec: EpisodeSpec) -> None:
        vars(self._sim).pop("reset")
        if spec == self._spec:
            set_global_rng_state(self._rng_states[0])
        else:
            self._reveal()
            self._sim.reset(spec)

    def _observe(self, keys: Sequence[str]) -> Observation:
        self._reveal()
        set_global_rng_state(self._rng_states[1])
        others = [key for key in keys if key not in self._seen]
        known = {key: self._seen[key] for key in keys if key in self._seen}
        return {**known, **(self._sim.observe(others) if others else {})}

    def _step(self, action: Array) -> StepResult:
        self._reveal()
        return self._sim.step(action)


def _identity(made: Any) -> Any:
    return made


def _append(log: Any, file: os.PathLike[str] | None) -> None:
    """Append what the simulator has printed so far to the workers' log."""
    log.seek(0)
    content = log.read()
    if content and file is not None:
        # A full disk must not end the worker: the journal's own error ends the run.
        with contextlib.suppress(OSError), open(file, "ab") as target:  # noqa: PTH123  any path
            target.write(content)
