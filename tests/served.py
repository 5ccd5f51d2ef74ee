"""A server of report pages in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from proctor.report.server.serve import PageServer, RunServer
from proctor.report.server.site import Site

Server = TypeVar("Server", bound=PageServer)


@contextmanager
def served(root: Path, host: str = "127.0.0.1") -> Iterator[RunServer]:
    """Serve the runs of ``root`` on any free port while the block runs."""
    with _on_a_thread(RunServer(root, host, 0)) as server:
        yield server


@contextmanager
def serving(site: Site) -> Iterator[PageServer]:
    """Serve a site on any free port while the block runs."""
    with _on_a_thread(PageServer(site, "127.0.0.1", 0)) as server:
        yield server


@contextmanager
def _on_a_thread(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
