"""Worker processes. ``in_process`` has workers without processes; both implement ``Pool``."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import selectors
import threading
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from typing import Any, Protocol

from proctor.benchmarks.guarded_sim import Phase
from proctor.engine.failures import hang_report, process_death_report
from proctor.engine.processes.forking import ensure_fork_server, without_main_module
from proctor.engine.processes.warm_workers import close_warm_workers, take_warm_worker
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.transport.channel import EngineEnd, make_channel
from proctor.engine.transport.messages import EpisodeStarted, Order, Report, WorkerFailed
from proctor.engine.transport.shared_memory import ObservationBuffer
from proctor.engine.worker.worker import worker_main
from proctor.errors import UsageError, WorkerError
from proctor.features import Array
from proctor.system.platform.platform_info import is_process_runnable

_START_GRACE_S = 60.0
_MAX_LAUNCHES = 5
_SERVER_GONE_S = 0.1
"""Seconds after which a killed fork server counts as dead."""
_EXIT_CODE_S = 5.0
"""Longest wait for a worker's exit code, which the fork server reports late on a busy computer. It
shows whether the simulator ended the worker."""


class Pool(Protocol):
    """Slots with one worker each; a worker accepts orders and sends reports."""

    def start(self, slot: int) -> None:
        """Start a new worker in ``slot``, replacing the old one."""

    def send(self, slot: int, order: Order) -> None:
        """Send an order to the worker in ``slot``."""

    def poll(self, timeout_s: float) -> list[tuple[int, Report]]:
        """Wait for a report or a call of ``wake``, and return all reports."""

    def observations(self, slots: list[int]) -> dict[str, Array]:
        """Return the latest observations of ``slots`` as batches [B, n_obs_steps, ...]."""

    def steps(self) -> Array:
        """Return the number of steps that the workers of each slot have ever taken, [n]."""

    def wake(self) -> None:
        """Make a ``poll`` that waits in another thread return."""

    def close(self) -> None:
        """End all workers."""


@dataclass
class _Process:
    process: ForkServerProcess
    orders: EngineEnd
    busy_since: float | None = None
    beats: int = 0
    watches_room: bool = False
    """Whether the selector waits for room in the worker's channel."""


class ProcessPool:
    """One process per worker, forked from a server that has the simulator's modules imported.

    The pool reports a worker as ``WorkerFailed`` if it dies, or if it has an order and takes no
    step for ``watchdog_s`` seconds. The worker is then gone, and ``start`` puts a new one into its
    slot.
    """

    def __init__(self, settings: RolloutSettings, buffer: ObservationBuffer) -> None:
        self._settings = settings
        self._buffer = buffer
        self._watchdog_s = settings.flags.watchdog_s
        self._context = multiprocessing.get_context("forkserver")
        self._slots: dict[int, _Process] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._wake_lock = threading.Lock()
        self._closed = False
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self._next_check = 0.0

    def start(self, slot: int) -> None:
        """Start a process in ``slot``, killing the one that was there."""
        self._remove(slot)
        self._buffer.phases[slot] = Phase.PROCTOR
        warm = take_warm_worker(self._settings, self._buffer, slot)
        process, ours = self._fork(slot) if warm is None else warm
        grace_s = max(0.0, _START_GRACE_S - self._watchdog_s)  # a cold disk makes imports slow
        self._slots[slot] = _Process(process, ours, time.monotonic() + grace_s, self._beats(slot))
        self._selector.register(ours, selectors.EVENT_READ, slot)

    def _fork(self, slot: int) -> tuple[ForkServerProcess, EngineEnd]:
        """Return a new worker process and the channel to it."""
        ours, theirs = make_channel()
        process = self._context.Process(
            target=worker_main,
            args=(theirs, self._settings.for_worker(), self._buffer, slot),
            name=f"proctor-worker-{slot}",
            daemon=True,
        )
        self._launch(process)
        theirs.close()
        return process, ours

    def _launch(self, process: ForkServerProcess) -> None:
        """Fork ``process``; start a new fork server if the old one was killed."""
        for _ in range(_MAX_LAUNCHES):
            try:
                ensure_fork_server(self._settings.environment)
                with without_main_module():
                    process.start()
                return
            except (EOFError, ConnectionError):
                time.sleep(_SERVER_GONE_S)
            except FileNotFoundError:
                raise WorkerError(
                    "no worker can start: the working directory or the temporary folder is gone"
                ) from None
        raise WorkerError(
            f"the process that workers are forked from died {_MAX_LAUNCHES} times; "
            "--eval.use_async_envs=false does without it and shows why"
        )

    def send(self, slot: int, order: Order) -> None:
        """Send ``order`` without blocking; the next poll notices a dead worker."""
        worker = self._slots[slot]
        worker.busy_since = time.monotonic()
        worker.orders.post(order)
        self._watch(slot, worker)

    def _watch(self, slot: int, worker: _Process) -> None:
        """Select for the worker's reports, and for room in its channel if bytes are buffered."""
        if worker.orders.waiting != worker.watches_room:
            worker.watches_room = worker.orders.waiting
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.watches_room else 0)
            self._selector.modify(worker.orders, events, slot)

    def poll(self, timeout_s: float) -> list[tuple[int, Report]]:
        """Return reports, deaths and hangs, waiting up to ``timeout_s`` seconds for the first."""
        reports: list[tuple[int, Report]] = []
        for key, events in self._selector.select(timeout_s):
            slot = key.data
            if slot is None:
                os.read(self._wake_reader, 4096)
                continue
            if events & selectors.EVENT_WRITE:
                worker = self._slots[slot]
                worker.orders.flush()
                self._watch(slot, worker)
            if events & selectors.EVENT_READ:
                reports += [(slot, report) for report in self._receive(slot)]
        return reports + self._hung()

    def observations(self, slots: list[int]) -> dict[str, Array]:
        """Copy the windows of ``slots`` out of the shared memory."""
        return self._buffer.gather(slots)

    def steps(self) -> Array:
        """Return the step counters that the workers write."""
        return self._buffer.beats

    def wake(self) -> None:
        """Make ``poll`` return; callable from any thread, also after ``close``.

        After ``close`` the descriptor's number may belong to another file: nothing may be written
        to it.
        """
        with self._wake_lock, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.write(self._wake_writer, b"w")

    def close(self) -> None:
        """Kill all workers: everything they produced is on disk already."""
        with contextlib.ExitStack() as closing:
            closing.callback(close_warm_workers)
            closing.callback(self._buffer.close)
            closing.callback(self._close_wake)
            closing.callback(self._selector.close)
            for slot in self._slots:
                closing.callback(self._remove, slot)
            for worker in self._slots.values():
                worker.process.kill()  # all first: they end in parallel while we wait for each

    def _close_wake(self) -> None:
        with self._wake_lock:
            self._closed = True
            os.close(self._wake_reader)
            os.close(self._wake_writer)

    def _receive(self, slot: int) -> list[Report]:
        worker = self._slots[slot]
        try:
            reports: list[Report] = worker.orders.collect()
        except EOFError:
            return [self._died(slot)]
        if any(not isinstance(report, EpisodeStarted) for report in reports):
            worker.busy_since = None
        if reports and isinstance(reports[-1], WorkerFailed):  # a worker's last report
            self._remove(slot)
        return reports

    def _died(self, slot: int) -> WorkerFailed:
        process = self._slots[slot].process
        process.join(_EXIT_CODE_S)
        code = process.exitcode
        self._remove(slot)
        return process_death_report(code, in_simulator=self._in_simulator(slot))

    def _hung(self) -> list[tuple[int, Report]]:
        """Find workers that have an order and took no step for too long."""
        now = time.monotonic()
        if now < self._next_check:
            return []
        # If this process was stopped (Ctrl-Z) or starved, so were the workers:
        # a missing step in that time is no sign of a hang.
        looked_away = now - self._next_check > self._watchdog_s / 2
        self._next_check = now + min(1.0, self._watchdog_s / 4)
        hung: list[tuple[int, Report]] = []
        for slot, worker in list(self._slots.items()):
            if worker.busy_since is None:
                continue
            if worker.beats != self._beats(slot) or looked_away:
                worker.beats = self._beats(slot)
                worker.busy_since = max(now, worker.busy_since)  # keep a start's grace
            elif now - worker.busy_since > self._watchdog_s:
                able = is_process_runnable(worker.process.pid)  # else the system holds it
                self._remove(slot)
                simulators = able and self._in_simulator(slot)
                hung.append((slot, hang_report(self._watchdog_s, in_simulator=simulators)))
        return hung

    def _in_simulator(self, slot: int) -> bool:
        """Whether the worker of ``slot`` runs, or died in, the simulator's own code."""
        return bool(self._buffer.phases[slot] == Phase.SIMULATOR)

    def _beats(self, slot: int) -> int:
        return int(self._buffer.beats[slot])

    def _remove(self, slot: int) -> None:
        worker = self._slots.pop(slot, None)
        if worker is None:
            return
        self._selector.unregister(worker.orders)
        worker.orders.close()
        worker.process.kill()
        worker.process.join()
        worker.process.close()


def check_importable(settings: RolloutSettings) -> None:
    """Refuse plug-ins that are defined in the started script: workers do not run that script."""
    for part in (settings.make_benchmark, settings.make_policy):
        made: Any = getattr(part, "func", part)
        if getattr(made, "__module__", "") == "__main__":
            raise UsageError(
                f"{made.__name__} is defined in the script itself; move it into a module of its "
                "own so that worker processes can import it",
                code="plugin.in-main-module",
            )
