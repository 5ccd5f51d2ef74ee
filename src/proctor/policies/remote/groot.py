"""A connection to a server of GR00T's, over ZeroMQ."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from proctor.errors import ConnectionLost, ProtocolError, summarize_traceback
from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.policies.remote.connection import ConnectionSettings, server_label
from proctor.protocols import groot, groot_dialect
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo
from proctor.system.optional import LOAD_ERRORS, import_failure
from proctor.types import EpisodeSpec

try:
    import zmq
except LOAD_ERRORS as error:
    raise import_failure(error, "zmq", "wire", "pyzmq") from None

_SLICE_MS = 100
_BEAT_MS, _BEAT_TIMEOUT_MS = 2000, 10_000


class GrootConnection:
    """Asks over one socket. ZeroMQ hides that a server went away: its own events tell."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        """Connect, and ask whether it is one of ours.

        Raises:
            WireError: there is no server, or one of another protocol.
        """
        self._address, self._settings = address, settings
        self._closing = threading.Event()
        self._using = threading.Lock()
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.REQ)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.MAXMSGSIZE, settings.most_bytes),
            (zmq.HEARTBEAT_IVL, _BEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, _BEAT_TIMEOUT_MS),
            (zmq.IPV6, int(":" in address.host)),
        ):
            self._socket.setsockopt(option, value)
        self._events = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        host = f"[{address.host}]" if ":" in address.host else address.host
        try:
            self._socket.connect(f"tcp://{host}:{address.port}")
            self._meet()
        except zmq.ZMQError as error:
            self.close()
            raise ConnectionLost(f"{address} cannot be reached: {error.strerror}") from None
        except ProtocolError:
            self.close()
            raise

    def _meet(self) -> None:
        """Ask whether it is one of ours, and somebody else's how it is to be asked."""
        said = self._call(groot.GrootRequest(groot.ABOUT), self._settings.connect_s)
        self.about: ServerInfo | None = groot.decode_server_info(said)
        self._dialect = groot_dialect.Dialect()
        if self.about is None:
            said = self._call(groot.GrootRequest(groot.CONFIG), self._settings.connect_s)
            self._dialect = groot_dialect.decode_dialect(said)
        self.word, self.wants = server_label(said), self._dialect.wants
        self.remembers = self.about is None or self.about.remembers

    def begin(self, spec: EpisodeSpec) -> None:
        """Have the server forget what was before; N1.5 knows no such word, and says so."""
        self._call(groot.GrootRequest(groot.RESET), self._settings.answer_s)

    def ask(self, ask: InferenceRequest) -> Array:
        """Return the actions that answer a question."""
        dialect = self._dialect
        asked = groot.observation_data(ask, dialect)
        request = groot.GrootRequest(groot.ACT, asked, msgpack_numpy=dialect.msgpack_numpy)
        reply = groot.decode_actions(self._call(request, self._settings.answer_s))
        if reply.actions is None:
            raise ProtocolError(f"the server says: {summarize_traceback(reply.error or '')}")
        if len(reply.parts) > 1:
            self._settings.warn(f"the actions are {', '.join(reply.parts)}, side by side")
        return reply.actions

    def end(self) -> None:
        """Say nothing: the next episode begins with a reset."""

    def close(self) -> None:
        """Hang up: now, or as soon as whoever uses it notices."""
        self._closing.set()
        if self._using.acquire(blocking=False):
            self._destroy()

    def _destroy(self) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._context.destroy(0)

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Hold the socket: it is one thread's at a time, also when another wants it closed."""
        if not self._using.acquire(blocking=False):
            raise ConnectionLost(f"{self._address} is not asked any more")
        try:
            yield
        finally:
            if self._closing.is_set():
                self._destroy()  # and keep the lock: there is nothing left to hold
            else:
                self._using.release()

    def _call(self, request: groot.GrootRequest, within_s: float) -> bytes:
        token = self._settings.api_key
        frame = groot.encode_request(replace(request, api_token=token))
        with self._in_use():
            try:
                self._socket.send(frame, zmq.NOBLOCK)
                return self._received(time.monotonic() + within_s)
            except zmq.ZMQError as error:
                raise ConnectionLost(f"{self._address} is lost: {error.strerror}") from None

    def _received(self, until: float) -> bytes:
        poller: Any = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._events, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(_SLICE_MS))
            if self._events in ready:  # first: whoever answers behind it is another
                self._events.recv_multipart()
                raise ConnectionLost(f"{self._address} is lost: the server hung up")
            if self._socket in ready:
                received: bytes = self._socket.recv()
                return received
            if self._closing.is_set():
                raise ConnectionLost(f"{self._address} is not asked any more")
            if time.monotonic() >= until:
                raise ConnectionLost(f"{self._address} does not answer in time")
