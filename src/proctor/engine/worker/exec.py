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

from proctor.benchmarks.base import WorkerInterpreter
from proctor.benchmarks.isolated.launch import (
    PROCTOR_FOLDER,
    WORKER_FOLDER,
    isolated_environment,
    shared_memory,
)
from proctor.engine.transport.channel import WorkerEnd
from proctor.engine.transport.shared_memory import ObservationBuffer
from proctor.engine.worker.settings import WorkerSettings


@dataclass(frozen=True)
class WorkerState:
    """Everything that a worker takes to its next interpreter, which may be unable to unpickle it.

    ``orders``, ``memory``, ``parent`` and ``process`` are descriptors: the channel to the engine,
    the observation buffer, and those that become readable when the engine's process ends and when
    this one does.
    """

    moved_settings: bytes
    """The pickled ``WorkerSettings`` for the other interpreter."""
    home_settings: bytes
    """Those for Proctor's own."""
    orders: int
    memory: int
    parent: int | None
    process: int | None
    n_slots: int
    slot: int
    home_python: str
    """Proctor's own interpreter."""
    home_environment: dict[str, str]
    home_path: list[str]
    is_home: bool = False
    """Whether the next interpreter is Proctor's own."""
    order: bytes | None = None
    """An order that was received and not executed, encoded."""

    def settings(self) -> WorkerSettings:
        """Unpickle the settings for this interpreter."""
        pickled = self.home_settings if self.is_home else self.moved_settings
        settings: WorkerSettings = pickle.loads(pickled)  # noqa: S301  from the engine
        return settings

    def move_home(self, order: bytes | None = None) -> NoReturn:
        """Continue this worker in Proctor's own interpreter, with ``order`` first."""
        state = replace(self, is_home=True, order=order, process=None)
        _execute(self.home_python, self.home_environment, state)


def move_to(
    interpreter: WorkerInterpreter,
    orders: WorkerEnd,
    settings: WorkerSettings,
    buffer: ObservationBuffer,
    slot: int,
) -> NoReturn:
    """Continue this worker in another interpreter."""
    parent = parent_process()
    home = replace(settings, interpreter=None, log_file=None)
    make_sims = interpreter.make_sims
    moved = home if make_sims is None else replace(home, make_benchmark=make_sims)
    state = WorkerState(
        moved_settings=pickle.dumps(moved),
        home_settings=pickle.dumps(home),
        orders=orders.fileno(),
        memory=buffer.fileno(),
        parent=None if parent is None else parent.sentinel,
        process=os.pidfd_open(os.getpid()),
        n_slots=buffer.n_slots,
        slot=slot,
        home_python=sys.executable,
        home_environment=dict(os.environ),
        home_path=list(sys.path),
    )
    _execute(interpreter.python, isolated_environment(), state)


def read_state(descriptor: int) -> WorkerState:
    """Return the state that a worker has brought to this interpreter."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        state: WorkerState = pickle.load(file)  # noqa: S301  written by this process
    return state


def _execute(python: str, environment: Mapping[str, str], state: WorkerState) -> NoReturn:
    """Replace this process's program by the worker in ``python``."""
    content = pickle.dumps(state)
    descriptor = shared_memory(len(content))
    os.write(descriptor, content)
    for kept in (descriptor, state.orders, state.memory, state.parent, state.process):
        if kept is not None:
            os.set_inheritable(kept, True)
    resume = "proctor.engine.worker.worker:resume_worker"
    words = [python, str(WORKER_FOLDER / "__main__.py"), resume, str(descriptor)]
    os.execve(  # noqa: S606  the user's own interpreter
        python, words, {**environment, "PROCTOR_WORKER_PACKAGES": str(PROCTOR_FOLDER)}
    )
