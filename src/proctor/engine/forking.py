"""Starting the process that workers are forked from, as the parent sees it."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import types
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from typing import Any

from proctor.engine.fork_server import PARENTS_SIGNALS, SOCKET_FOLDER, socket_folder
from proctor.system.environment import temporary_environment


def start_fork_server(preload: tuple[str, ...], environment: dict[str, str]) -> None:
    """Start the process that workers are forked from, with their modules imported once.

    Returns at once; the imports go on while the parent does other things.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["proctor.engine.fork_server", "proctor.engine.worker", *preload]
    )
    ensure_fork_server(environment)


def ensure_fork_server(environment: dict[str, str]) -> None:
    """Start the fork server, unless it is alive.

    It begins with Ctrl-C blocked (see ``fork_server``): one that comes while Python starts there
    would show the user a traceback. multiprocessing's resource tracker ignores Ctrl-C by itself,
    and a hang-up only because it is blocked when it begins.
    """
    with (
        without_main_module(),
        temporary_environment(_fork_server_variables(environment)),
        _blocked(PARENTS_SIGNALS),
    ):
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)  # it has unblocked Ctrl-C
        forkserver.ensure_running()


def end_fork_server() -> None:
    """End it, and remove its folder: for a process that will be killed, and forks no more."""
    server: Any = forkserver._forkserver
    with contextlib.suppress(FileNotFoundError):  # the server was quicker to remove its socket
        server._stop()


@contextlib.contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """Put ``signals`` off until the block has ended; processes that it starts keep them off."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork_server_variables(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that the fork server and all workers begin with."""
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

    Workers need nothing of it, and it may import torch or lack an ``if __name__`` guard.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
