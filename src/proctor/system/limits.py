"""Limits of services and of peers: access, connections, bytes, time, memory and work.

ServerLimits       key, origins, TLS, sizes, timeouts and connections of a service
connection_limit   as many connections as leave descriptors for the service's own files
ByteBudget         memory that calls share, counted before it is allocated
CycleLimits        messages and seconds that a control loop spends on a peer in one cycle
decode_json        JSON of a peer, without endless numbers, NaN or deep nesting
is_finite_as       whether numbers stay finite in the dtype that stores them
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from proctor.errors import ProtocolError, UsageError
from proctor.system.loopback import LOOPBACK, is_own_origin, is_own_request

MAX_MESSAGE_BYTES = 16 * 2**20
"""Default limit of one message in bytes: about 17 images of 640x480 pixels."""
ROOM_BYTES = 4 * 2**20
_OWN_DESCRIPTORS = 128
"""Descriptors that connections leave for journals, checkpoints and libraries."""
_MAX_DIGITS = 32


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
    """Return a bound socket with a receive buffer for whole images, so that no sender blocks."""
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
    open_s: float = 10.0
    """Longest time in seconds of a handshake, until the first byte of a call, and between the parts
    of an unfinished message."""
    message_s: float = 300.0
    """Longest time in seconds of a whole message."""
    memory_bytes: int = 2**30
    """Bytes of messages that have not arrived as a whole, of all clients together."""
    idle_s: float = 600.0
    """Longest time in seconds that a client may be silent between messages."""

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
        """Return the TLS context; None without TLS."""
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


def connection_limit(wanted: int) -> int:
    """Return how many of ``wanted`` connections leave descriptors for the service's own files.

    Raises the process's soft limit of descriptors for them, as far as the hard limit allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = Path("/proc/self/fd")
    used = len([*folder.iterdir()]) if folder.is_dir() else _OWN_DESCRIPTORS
    needed = wanted + used + _OWN_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = min(wanted, soft - used - min(_OWN_DESCRIPTORS, soft // 2))
    return max(1, wanted)


class ByteBudget:
    """Bytes that several calls may hold together; thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held, self._lock = 0, threading.Lock()

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._held

    def take(self, count: int) -> bool:
        """Count bytes before they are allocated; return False, and count nothing, without room."""
        with self._lock:
            if self._held + count > self.most:
                return False
            self._held += count
            return True

    def give_back(self, count: int) -> None:
        """Count bytes as freed."""
        with self._lock:
            self._held -= count
            assert self._held >= 0, "more bytes were given back than taken"


@dataclass(frozen=True)
class CycleLimits:
    """Limits of what a control loop reads from a peer in one cycle."""

    messages: int = 64
    seconds: float = 0.005

    def turns(self, now: Callable[[], float] = time.monotonic) -> Iterator[int]:
        """Yield the number of each message that may be read; there is always one."""
        until = now() + self.seconds
        for turn in range(self.messages):
            if turn and now() >= until:
                return
            yield turn


def decode_json(data: bytes | str, max_bytes: int = 2**16) -> Any:
    """Decode a peer's JSON; every number in it is finite."""
    if len(data) > max_bytes:
        raise ProtocolError(
            f"a message of {len(data)} bytes; the limit is {max_bytes}", code="protocol.too-large"
        )
    try:
        return json.loads(
            data, parse_int=_integer, parse_float=_finite_float, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ProtocolError("a message is nested too deep", code="protocol.too-deep") from None
    except ValueError as error:
        raise ProtocolError(
            f"a message is invalid ({error})", code="protocol.invalid-json"
        ) from None


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer has {len(text)} digits")
    return int(text)


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def is_finite_as(values: Any, dtype: Any = "float32") -> bool:
    """Return whether all ``values`` stay finite in the dtype that stores them."""
    import numpy as np  # `proctor eval --help` comes here

    numbers = np.asarray(values)
    if numbers.dtype.kind in "bui":
        return True
    if numbers.dtype.kind != "f":
        return False
    if numbers.dtype.itemsize > np.dtype(dtype).itemsize:
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = numbers.astype(dtype)
    return bool(np.isfinite(numbers).all())
