"""Flags and the loop of commands that serve pages until Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proctor.report.server.serve import PageServer

HOST = "IP address to serve on; the URL for other machines contains an access token"
PORT = "TCP port to serve on; 0: any free port"
LOCAL_HOST = "127.0.0.1"


def serve_until_interrupted(server: PageServer) -> int:
    """Print the URL, serve pages until Ctrl-C, and return the exit code."""
    print(f"{server.edit_url}  (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
    return 0
