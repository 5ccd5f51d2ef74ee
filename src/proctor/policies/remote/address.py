"""Where a policy is served, and what is spoken there: told by the URL, or by a flag."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from proctor.errors import UsageError
from proctor.protocols.inference_messages import Protocol
from proctor.system.loopback import LOOPBACK

_SCHEMES = {
    "ws": (Protocol.OPENPI, 8000, False),
    "wss": (Protocol.OPENPI, 443, True),
    "vla": (Protocol.VLA_EVAL, 8000, False),
    "vlas": (Protocol.VLA_EVAL, 443, True),
    "tcp": (Protocol.GROOT, 5555, False),
    "grpc": (Protocol.LEROBOT, 8080, False),
    "grpcs": (Protocol.LEROBOT, 443, True),
}
"""By scheme: the protocol, its usual port, and whether it is encrypted."""


@dataclass(frozen=True)
class Address:
    """One server."""

    url: str
    protocol: Protocol
    host: str
    port: int
    path: str
    encrypted: bool

    @property
    def is_local(self) -> bool:
        """Whether it is this machine."""
        return self.host in LOOPBACK

    def __str__(self) -> str:
        return self.url


def parse_addresses(urls: str, protocol: Protocol | None) -> list[Address]:
    """Return the servers that ``urls``, comma-separated, name.

    Raises:
        UsageError: one of them is no URL of a policy, or they speak different protocols.
    """
    found = [_address(url.strip(), protocol) for url in urls.split(",") if url.strip()]
    if not found:
        raise UsageError("--policy.url is missing (such as ws://127.0.0.1:8000)")
    if len({address.url for address in found}) < len(found):
        raise UsageError(f"--policy.url={urls} names a server twice")
    if len({address.protocol for address in found}) > 1:
        raise UsageError(f"--policy.url={urls}: all servers of a run speak the same protocol")
    return found


def is_printable_ascii(text: str) -> bool:
    """Whether a text is of plain letters and signs only, as headers and URLs are."""
    return all(32 < ord(char) < 127 for char in text)


def _address(url: str, protocol: Protocol | None) -> Address:
    choices = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise UsageError(f"--policy.url={url}: {error}") from None
    if parts.scheme not in _SCHEMES:
        raise UsageError(f"--policy.url={url} begins with none of {choices}")
    if not host or parts.username or parts.password or not is_printable_ascii(url):
        raise UsageError(f"--policy.url={url} names no server (such as ws://127.0.0.1:8000)")
    known, usual, encrypted = _SCHEMES[parts.scheme]
    spoken = known if protocol is None else protocol
    if spoken is not known and not parts.scheme.startswith("ws"):
        raise UsageError(
            f"--policy.url={url} is of {known.value}, --policy.protocol={spoken.value} is not"
        )
    if parts.scheme.startswith("ws") and spoken not in (Protocol.OPENPI, Protocol.VLA_EVAL):
        raise UsageError(f"--policy.url={url}: {spoken.value} is not spoken over WebSockets")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(url, spoken, host, usual if port is None else port, path, encrypted)
