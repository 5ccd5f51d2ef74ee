"""Connection to a GR00T policy server, over ZeroMQ."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from proctor.errors import ConnectionLost, ProtocolError
from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.policies.remote.connection import ConnectionSettings, ServerConnection, server_label
from proctor.protocols import groot, groot_dialect
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo
from proctor.system.platform.optional import LOAD_ERRORS, import_failure
from proctor.types import EpisodeSpec

try:
    import zmq
except LOAD_ERRORS as error:
    raise import_failure(error, "zmq", "wire", "pyzmq") from None

_SLICE_MS = 100
_BEAT_MS, _BEAT_TIMEOUT_MS = 2000, 10_000


class GrootConnection(ServerConnection):
    """Connection over one REQ socket.

    ZeroMQ hides disconnects from its users, so the socket's monitor events report them.
    """

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        """Connect and do the handshake."""
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
            self._handshake()
        except zmq.ZMQError as error:
            self.close()
            raise ConnectionLost(f"{address} cannot be reached: {error.strerror}") from None
        except ProtocolError:
            self.close()
            raise

    def _handshake(self) -> None:
        """Request the info of a Proctor server, else the modality config of a GR00T server."""
        reply = self._call(groot.GrootRequest(groot.ABOUT), self._settings.connect_s)
        self.server_info: ServerInfo | None = groot.decode_server_info(reply)
        self._dialect = groot_dialect.Dialect()
        if self.server_info is None:
            reply = self._call(groot.GrootRequest(groot.CONFIG), self._settings.connect_s)
            self._dialect = groot_dialect.decode_dialect(reply)
        self.label, self.expected_inputs = server_label(reply), self._dialect.wants
        self.is_stateful = self.server_info is None or self.server_info.remembers

    def start_episode(self, spec: EpisodeSpec) -> None:
        """Reset the server's state; GR00T N1.5 has no such endpoint and replies with an error."""
        self._call(groot.GrootRequest(groot.RESET), self._settings.answer_s)

    def infer(self, request: InferenceRequest) -> Array:
        """Send an inference request; return the actions."""
        dialect = self._dialect
        observation = groot.observation_data(request, dialect)
        call = groot.GrootRequest(groot.ACT, observation, msgpack_numpy=dialect.msgpack_numpy)
        reply = groot.decode_actions(self._call(call, self._settings.answer_s))
        actions = reply.required_actions()
        if len(reply.parts) > 1:
            self._settings.warn(f"the action is {', '.join(reply.parts)}, concatenated")
        return actions

    def close(self) -> None:
        """Close the socket now, or as soon as the thread that uses it returns."""
        self._closing.set()
        if self._using.acquire(blocking=False):
            self._destroy()

    def _destroy(self) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._context.destroy(0)

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Lock the socket for this thread, even if another thread wants to close it."""
        if not self._using.acquire(blocking=False):
            raise ConnectionLost(f"the connection to {self._address} is closed")
        try:
            yield
        finally:
            if self._closing.is_set():
                self._destroy()  # keep the lock: the socket is gone
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
            if self._events in ready:  # first: a later reply would come from another server
                self._events.recv_multipart()
                raise ConnectionLost(f"{self._address} is lost: the server closed the connection")
            if self._socket in ready:
                received: bytes = self._socket.recv()
                return received
            if self._closing.is_set():
                raise ConnectionLost(f"the connection to {self._address} is closed")
            if time.monotonic() >= until:
                raise ConnectionLost(f"{self._address} does not answer in time")
