"""Pages served by a command until Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.errors import UsageError

if TYPE_CHECKING:
    from proctor.report.serve import PageServer


def port_of(text: str) -> int:
    """Return the port that ``--port`` names.

    Raises:
        UsageError: it is none.
    """
    if not text.isdecimal() or len(text) > 5 or int(text) > 65535:
        raise UsageError(f"--port must be a number from 0 to 65535, got {text!r}")
    return int(text)


def serve_until_interrupted(server: PageServer) -> int:
    """Say where the pages are, serve them until Ctrl-C, and return the exit code."""
    print(f"{server.url}  (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
    return 0
