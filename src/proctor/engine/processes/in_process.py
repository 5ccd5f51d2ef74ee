"""Workers inside this process: for a debugger, and for a single episode."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque

from proctor.engine.failures import failure_report
from proctor.engine.processes.pool import Pool, ProcessPool
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.transport.messages import Order, Report, WorkerReady
from proctor.engine.transport.shared_memory import ObservationBuffer
from proctor.engine.worker.worker import Worker
from proctor.features import Array
from proctor.system.global_rng import IsolatedRng


class InProcessPool:
    """All workers in this process: ``send`` executes an order before it returns."""

    def __init__(self, settings: RolloutSettings, buffer: ObservationBuffer) -> None:
        self._settings = settings
        self._buffer = buffer
        self._workers: dict[int, Worker] = {}
        self._generators: defaultdict[int, IsolatedRng] = defaultdict(IsolatedRng)
        self._reports: deque[tuple[int, Report]] = deque()
        self._woken = threading.Event()

    def start(self, slot: int) -> None:
        """Create the worker of ``slot`` anew, closing the simulator of the old one."""
        if slot in self._workers:
            with contextlib.suppress(Exception):  # its failure has been reported
                self._workers.pop(slot).close_sim()
        self._workers[slot] = Worker(
            self._settings, self._buffer, slot, lambda report: self._reports.append((slot, report))
        )
        self._reports.append((slot, WorkerReady()))

    def send(self, slot: int, order: Order) -> None:
        """Execute ``order`` now; an exception of the simulator is a failed worker."""
        try:
            with self._generators[slot].activated():
                report: Report = self._workers[slot].handle(order)
        except Exception as error:  # noqa: BLE001  reported, as in worker_main
            report = failure_report(error, self._workers[slot].partial_result())
        self._reports.append((slot, report))

    def poll(self, timeout_s: float) -> list[tuple[int, Report]]:
        """Return new reports; if there are none, wait for the policy."""
        if not self._reports:
            self._woken.wait(timeout_s)
        self._woken.clear()
        reports = list(self._reports)
        self._reports.clear()
        return reports

    def observations(self, slots: list[int]) -> dict[str, Array]:
        """Copy the observation windows of ``slots``."""
        return self._buffer.gather(slots)

    def steps(self) -> Array:
        """Return the step counters that the workers write."""
        return self._buffer.beats

    def wake(self) -> None:
        """Make ``poll`` return."""
        self._woken.set()

    def close(self) -> None:
        """Close every simulator."""
        with contextlib.ExitStack() as closing:
            closing.callback(self._buffer.close)
            for worker in self._workers.values():
                closing.callback(worker.close_sim)
            self._workers.clear()


def make_pool(settings: RolloutSettings, buffer: ObservationBuffer) -> Pool:
    """Return a pool of worker processes, or of workers in this process, as the flags say.

    The pool owns ``buffer`` from here on. It is closed if the pool cannot be made.
    """
    with contextlib.ExitStack() as undo:
        undo.callback(buffer.close)
        make: type[ProcessPool | InProcessPool] = (
            ProcessPool if settings.flags.use_async_envs else InProcessPool
        )
        pool = make(settings, buffer)
        undo.pop_all()
    return pool
