"""A server of run folders on a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proctor.report.serve import RunServer


@contextmanager
def served(root: Path, host: str = "127.0.0.1") -> Iterator[RunServer]:
    """Serve ``root`` on any free port while the block runs."""
    server = RunServer(root, host, 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
