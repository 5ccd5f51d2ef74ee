"""Moves a worker process to another interpreter and back, with ``exec``.

The process keeps its id, its channel to the engine and the shared memory, so the engine handles it
as any other worker. An interpreter that has a simulator's packages may lack Proctor's dependencies.
An order that needs them (videos, recordings) moves the worker back.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from typing import NoReturn

from proctor.benchmarks.foreign.launch import PROCTOR_FOLDER, WORKER_FOLDER, foreign_environment
from proctor.engine.channel import WorkerEnd
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.shared_memory import ObservationBuffer, anonymous_file


@dataclass(frozen=True)
class WorkerState:
    """Everything that a worker takes to its next interpreter, which may be unable to unpickle it.

    ``orders``, ``memory`` and ``parent`` are descriptors: the channel to the engine, the
    observation buffer, and the one that becomes readable when the engine's process ends.
    """

    settings: bytes
    """The pickled ``RolloutSettings``."""
    orders: int
    memory: int
    parent: int | None
    n_slots: int
    slot: int
    home_python: str
    """Proctor's own interpreter."""
    home_environment: dict[str, str]
    home_path: list[str]
    is_home: bool = False
    """Whether the next interpreter is Proctor's own."""
    order: bytes | None = None
    """An order that was received and not executed, pickled."""

    def move_home(self, order: bytes | None = None) -> NoReturn:
        """Continue this worker in Proctor's own interpreter, with ``order`` first."""
        state = replace(self, is_home=True, order=order)
        _execute(self.home_python, self.home_environment, state)


def move_to(
    python: str, orders: WorkerEnd, settings: RolloutSettings, buffer: ObservationBuffer, slot: int
) -> NoReturn:
    """Continue this worker in the interpreter ``python``."""
    parent = parent_process()
    state = WorkerState(
        settings=pickle.dumps(settings),
        orders=orders.fileno(),
        memory=buffer.fileno(),
        parent=None if parent is None else parent.sentinel,
        n_slots=buffer.n_slots,
        slot=slot,
        home_python=sys.executable,
        home_environment=dict(os.environ),
        home_path=list(sys.path),
    )
    _execute(python, foreign_environment(), state)


def read_state(descriptor: int) -> WorkerState:
    """Return the state that a worker has brought to this interpreter."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        state: WorkerState = pickle.load(file)  # noqa: S301  written by this process
    return state


def _execute(python: str, environment: Mapping[str, str], state: WorkerState) -> NoReturn:
    """Replace this process's program by the worker in ``python``."""
    content = pickle.dumps(state)
    descriptor = anonymous_file(len(content))
    os.write(descriptor, content)
    for kept in (descriptor, state.orders, state.memory, state.parent):
        if kept is not None:
            os.set_inheritable(kept, True)
    resume = "proctor.engine.worker:resume_worker"
    words = [python, str(WORKER_FOLDER / "__main__.py"), resume, str(descriptor)]
    os.execve(  # noqa: S606  the user's own interpreter
        python, words, {**environment, "PROCTOR_WORKER_PACKAGES": str(PROCTOR_FOLDER)}
    )
