"""Workers inside this process: for a debugger, and for an episode alone."""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque

from proctor.engine.arena import Arena
from proctor.engine.breakage import broken_by
from proctor.engine.messages import Order, Report, Started
from proctor.engine.worker import Worker, WorkerSetup
from proctor.machine.generators import OwnGenerators


class InProcessPool:
    """All workers in this process: an order is carried out while it is sent."""

    def __init__(self, setup: WorkerSetup, arena: Arena) -> None:
        self._setup = setup
        self._arena = arena
        self._workers: dict[int, Worker] = {}
        self._generators: defaultdict[int, OwnGenerators] = defaultdict(OwnGenerators)
        self._reports: deque[tuple[int, Report]] = deque()

    def start(self, slot: int) -> None:
        """Make the worker of ``slot`` anew, closing the simulator of the old one."""
        if slot in self._workers:
            with contextlib.suppress(Exception):  # it broke, and that has been reported
                self._workers.pop(slot).close_sim()
        self._workers[slot] = Worker(self._setup, self._arena, slot)
        self._reports.append((slot, Started()))

    def send(self, slot: int, order: Order) -> None:
        """Carry out ``order`` now; a simulator that raises breaks its worker."""
        try:
            with self._generators[slot].in_use():
                report: Report = self._workers[slot].handle(order)
        except Exception as error:  # noqa: BLE001  the worker's edge, as in worker_main
            report = broken_by(error, self._workers[slot].so_far())
        self._reports.append((slot, report))

    def poll(self, timeout_s: float) -> list[tuple[int, Report]]:
        """Return what was reported since the last call; there is nothing to wait for."""
        reports = list(self._reports)
        self._reports.clear()
        return reports

    def wake(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Close every simulator."""
        with contextlib.ExitStack() as closing:
            for worker in self._workers.values():
                closing.callback(worker.close_sim)
            self._workers.clear()
