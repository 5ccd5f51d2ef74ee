"""Serves the page of a running evaluation from a process of its own.

Browsers and other clients then take no descriptors, memory or time of the evaluation. The page is
made from the run folder, so the two processes exchange nothing else.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from proctor.engine.processes.fork_server import PARENT_SIGNALS
from proctor.engine.processes.forking import without_main_module
from proctor.errors import UsageError
from proctor.report.server.serve import RunServer

_START_S, _END_S = 60.0, 5.0


@contextmanager
def live_page(root: Path, host: str, port: int) -> Iterator[str]:
    """Serve the run in ``root`` during the block; yield the page's address."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(root.absolute(), host, port, theirs), name="proctor-live", daemon=True
    )
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)
    try:
        with without_main_module():
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    theirs.close()
    try:
        yield _address_from(ours)
    finally:
        ours.close()  # tells the server to end
        process.join(_END_S)
        process.kill()
        process.join()
        process.close()


def _address_from(server: Connection) -> str:
    try:
        answer = server.recv() if server.poll(_START_S) else None
    except EOFError:
        answer = None
    if isinstance(answer, str):
        return answer
    raise answer or UsageError(
        "--live: the process that serves the page did not start", code="live.not-started"
    )


def _serve(root: Path, host: str, port: int, evaluation: Connection) -> None:
    """Serve ``root`` until the evaluation closes the connection or ends."""
    for signum in PARENT_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENT_SIGNALS)
    try:
        server = RunServer(root, host, port)
    except UsageError as error:
        evaluation.send(error)
        return
    evaluation.send(server.edit_url)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    evaluation.poll(None)  # nothing is ever sent: readable means closed
