"""Addresses of policy servers and their protocols, read from URLs and ``--policy.protocol``."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from proctor.errors import UsageError
from proctor.protocols.inference_messages import Protocol
from proctor.system.loopback import LOOPBACK
from proctor.system.redaction import redact_text

_SCHEMES = {
    "ws": (Protocol.OPENPI, 8000, False),
    "wss": (Protocol.OPENPI, 443, True),
    "vla": (Protocol.VLA_EVAL, 8000, False),
    "vlas": (Protocol.VLA_EVAL, 443, True),
    "tcp": (Protocol.GROOT, 5555, False),
    "grpc": (Protocol.LEROBOT, 8080, False),
    "grpcs": (Protocol.LEROBOT, 443, True),
}
"""URL scheme -> protocol, default port, whether the connection is encrypted."""


@dataclass(frozen=True)
class Address:
    """Address of one policy server."""

    url: str
    protocol: Protocol
    host: str
    port: int
    path: str
    encrypted: bool

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine."""
        return self.host in LOOPBACK

    def __str__(self) -> str:
        return redact_text(self.url)


def parse_addresses(urls: str, protocol: Protocol | None) -> list[Address]:
    """Return the addresses in ``urls``, which are comma-separated."""
    shown = redact_text(urls)
    found = [_address(url.strip(), protocol) for url in urls.split(",") if url.strip()]
    if not found:
        raise UsageError(
            "--policy.url is missing (such as ws://127.0.0.1:8000)", code="flag.missing"
        )
    if len({address.url for address in found}) < len(found):
        raise UsageError(f"--policy.url={shown} names a server twice", code="flag.duplicate")
    if len({address.protocol for address in found}) > 1:
        raise UsageError(
            f"--policy.url={shown}: all servers of a run must have the same protocol",
            code="flag.conflict",
        )
    return found


def is_printable_ascii(text: str) -> bool:
    """Whether a text has printable ASCII characters only, without spaces, as in HTTP headers."""
    return all(32 < ord(char) < 127 for char in text)


def check_api_key(flag: str, key: str | None) -> None:
    """Refuse a key that no HTTP header can hold."""
    if key is not None and not is_printable_ascii(key):
        raise UsageError(f"{flag} has characters that no header may have", code="secret.invalid")


def _address(url: str, protocol: Protocol | None) -> Address:
    choices, shown = ", ".join(f"{scheme}://" for scheme in _SCHEMES), redact_text(url)
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise UsageError(f"--policy.url={shown}: {error}", code="flag.invalid-value") from None
    if parts.scheme not in _SCHEMES:
        raise UsageError(
            f"--policy.url={shown}: unknown scheme (choose {choices})",
            code="flag.invalid-value",
        )
    if not host or parts.username or parts.password or not is_printable_ascii(url):
        raise UsageError(
            f"--policy.url={shown} is not a server's URL (such as ws://127.0.0.1:8000)",
            code="flag.invalid-value",
        )
    of_scheme, default_port, encrypted = _SCHEMES[parts.scheme]
    chosen = of_scheme if protocol is None else protocol
    if chosen is not of_scheme and not parts.scheme.startswith("ws"):
        raise UsageError(
            f"--policy.url={shown} has the protocol {of_scheme.value}, which contradicts "
            f"--policy.protocol={chosen.value}",
            code="flag.conflict",
        )
    if parts.scheme.startswith("ws") and chosen not in (Protocol.OPENPI, Protocol.VLA_EVAL):
        raise UsageError(
            f"--policy.url={shown}: the protocol {chosen.value} does not use WebSockets",
            code="flag.conflict",
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(url, chosen, host, default_port if port is None else port, path, encrypted)
