"""Access control and limits of a server: key, origins, TLS, sizes, timeouts, connections."""

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
    """A listening endpoint: its port, and how to close it."""

    port: int
    close: Callable[[], Coroutine[Any, Any, None]]


def cannot_listen(host: str, port: int, why: str | None) -> UsageError:
    """Return the error for an address on which the server cannot listen."""
    return UsageError(
        f"cannot listen on {host} port {port}: {why}; choose another --port or --host",
        code="serve.address-unavailable",
    )


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a bound socket with a receive buffer for whole images, so that senders do not block.

    Raises:
        UsageError: the port is in use, or the address does not belong to this machine.
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
    """Limits of a server."""

    host: str = "127.0.0.1"
    api_key: str | None = None
    tls: tuple[Path, Path] | None = None
    """Files of the certificate and of its private key."""
    max_bytes: int = MAX_MESSAGE_BYTES
    max_clients: int = 256
    idle_s: float = 600.0
    """Longest time in seconds that a client may be silent, or take to send or receive a message."""

    def __post_init__(self) -> None:
        assert self.api_key != "", "an empty key would admit every client"

    def accepts_key(self, offered: str | None) -> bool:
        """Return whether a client's key is right, in constant time; without a key, all are."""
        if self.api_key is None:
            return True
        sent = (offered or "").encode("utf-8", "surrogatepass")
        return secrets.compare_digest(sent, self.api_key.encode())

    def is_foreign(self, hosts: Sequence[str], origins: Sequence[str]) -> bool:
        """Return whether another web site sent a request with these Host and Origin headers.

        Checked only on a loopback address; on other addresses the API key decides.
        """
        return self.host in LOOPBACK and not is_own_request(hosts, origins)

    def is_foreign_origin(self, origins: Sequence[str]) -> bool:
        """Return the same for a protocol without a Host header."""
        return self.host in LOOPBACK and not is_own_origin(origins)

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None without TLS.

        Raises:
            UsageError: the files are not a certificate and its key.
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
                f"--tls_cert={certificate} and --tls_key={key} are not a certificate and its key: "
                f"{error}",
                code="serve.invalid-certificate",
            ) from None
        return context
