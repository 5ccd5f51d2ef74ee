"""Recognise requests from this machine's own programs and pages to a local server.

A web page of any site can open connections to 127.0.0.1 from a user's browser, or point its own
host name there (DNS rebinding). The browser then names the site in Origin or in Host.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

LOOPBACK = ("127.0.0.1", "localhost", "::1")
REFUSAL = "requests by other web sites are refused: use the address 127.0.0.1"
_AUTHORITY = r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?"
_HOST = re.compile(_AUTHORITY, re.IGNORECASE)
_ORIGIN = re.compile(rf"(https?|wss?)://{_AUTHORITY}", re.IGNORECASE)


def is_own_request(hosts: Sequence[str], origins: Sequence[str]) -> bool:
    """Return whether a request's Host and Origin headers use loopback names.

    Exactly one Host is required. Programs send no Origin; browsers send that of the page.
    """
    return (
        len(hosts) == 1 and _HOST.fullmatch(hosts[0].strip()) is not None and is_own_origin(origins)
    )


def is_own_origin(origins: Sequence[str]) -> bool:
    """Return whether no Origin header names another site; ``null`` is another site."""
    return all(_ORIGIN.fullmatch(origin.strip()) for origin in origins)
