"""Ports for servers that a test starts later."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 12_000, 32_000
"""Below the ports that the system gives to outgoing connections: one of those may be taken before
the server starts."""


def free_port() -> int:
    """Return a port of this machine that is free now."""
    while True:
        port = random.SystemRandom().randrange(_FIRST, _LAST)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
