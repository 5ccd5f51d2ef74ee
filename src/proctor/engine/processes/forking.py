"""Starts the fork server, the process that workers are forked from. Runs in the parent."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker, spawn
from typing import Any

from proctor.engine.processes.fork_server import PARENT_SIGNALS, SOCKET_FOLDER, socket_folder
from proctor.system.platform.environment import temporary_environment


def start_fork_server(preload: tuple[str, ...], environment: dict[str, str]) -> None:
    """Start the fork server, which imports the workers' modules once for all of them.

    Returns at once; the imports go on in parallel.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        [
            "proctor.engine.processes.fork_server",
            "proctor.engine.worker.worker",
            "proctor.engine.worker.policy",
            "proctor.engine.worker.recorded_episode",
            "proctor.engine.worker.video_sim",
            *preload,
        ]
    )
    ensure_fork_server(environment)


def ensure_fork_server(environment: dict[str, str]) -> None:
    """Start the fork server, unless it is alive.

    It starts with Ctrl-C blocked (see ``fork_server``), because a Ctrl-C during Python's start
    would print a traceback. multiprocessing's resource tracker ignores Ctrl-C by itself, and a
    hang-up only if that is blocked when it starts.
    """
    with (
        without_main_module(),
        temporary_environment(_fork_server_variables(environment)),
        _blocked(PARENT_SIGNALS),
    ):
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)  # the tracker unblocked Ctrl-C
        forkserver.ensure_running()


def end_fork_server() -> None:
    """End the fork server and remove its folder, in a process that will be killed."""
    server: Any = forkserver._forkserver
    with contextlib.suppress(FileNotFoundError):  # the server was quicker to remove its socket
        server._stop()


@contextlib.contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """Block ``signals`` during the block; processes started in it inherit the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork_server_variables(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment variables of the fork server and all workers."""
    return {
        # One simulator per core is already all the parallelism there is; BLAS threads only get in
        # the way (Meta-World steps 1.2x faster without them).
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        SOCKET_FOLDER: socket_folder(),
        **environment,
    }


@contextlib.contextmanager
def without_main_module() -> Iterator[None]:
    """Keep multiprocessing from running the user's script again in every worker.

    Workers need nothing of the script, which may import torch or lack an ``if __name__`` guard.
    Other threads may start processes of their own meanwhile.
    """
    _THREAD.without_main = True
    try:
        yield
    finally:
        _THREAD.without_main = False


_THREAD = threading.local()
_usual_preparation = spawn.get_preparation_data


def _preparation(name: str) -> dict[str, Any]:
    """Return what a new process sets up before it runs; see ``without_main_module``."""
    data: dict[str, Any] = _usual_preparation(name)
    if getattr(_THREAD, "without_main", False):
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    return data


spawn.get_preparation_data = _preparation
