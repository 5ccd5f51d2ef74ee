"""Who may talk to a server, how much, how long and how many at once."""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.protocols.msgpack_arrays import MAX_MESSAGE_BYTES
from proctor.system.loopback import LOOPBACK, is_own_origin, is_own_request

ROOM_BYTES = 4 * 2**20


@dataclass(frozen=True)
class OpenEndpoint:
    """A door that is open."""

    port: int
    close: Callable[[], Coroutine[Any, Any, None]]


def cannot_listen(host: str, port: int, why: str | None) -> UsageError:
    """Return the error for an address that cannot be served on."""
    return UsageError(
        f"cannot serve on {host} port {port}: {why}; choose another --port or --host",
        code="serve.address-unavailable",
    )


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket with room for whole pictures: a sender then need not wait for its reader.

    Raises:
        UsageError: the port is taken, or the address is none of this machine's.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM_BYTES)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise cannot_listen(host, port, error.strerror) from None
    return made


@dataclass(frozen=True)
class ServerLimits:
    """What a server allows."""

    host: str = "127.0.0.1"
    api_key: str | None = None
    tls: tuple[Path, Path] | None = None
    """The files of a certificate and of its key."""
    max_bytes: int = MAX_MESSAGE_BYTES
    max_clients: int = 256
    idle_s: float = 600.0
    """How long a guest may say nothing, or take to say or to take something."""

    def accepts_key(self, offered: str | None) -> bool:
        """Whether a key is the right one; without one of ours, any is."""
        if self.api_key is None:
            return True
        told = (offered or "").encode("utf-8", "surrogatepass")
        return secrets.compare_digest(told, self.api_key.encode())

    def is_foreign(self, hosts: Sequence[str], origins: Sequence[str]) -> bool:
        """Return whether another web site sent a request with these Host and Origin headers.

        Only asked on this machine's own address; elsewhere the API key decides.
        """
        return self.host in LOOPBACK and not is_own_request(hosts, origins)

    def is_foreign_origin(self, origins: Sequence[str]) -> bool:
        """Return the same for a protocol that shows no Host header."""
        return self.host in LOOPBACK and not is_own_origin(origins)

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return what a server encrypts with, if it does.

        Raises:
            UsageError: the files are none of a certificate and its key.
        """
        if self.tls is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(*self.tls)
        except (OSError, ssl.SSLError) as error:
            certificate, key = self.tls
            raise UsageError(
                f"--tls_cert={certificate} and --tls_key={key} are no certificate with its key: "
                f"{error}",
                code="serve.invalid-certificate",
            ) from None
        return context
