"""Connections to openpi and vla-eval servers over a blocking WebSocket.

Every operation has a deadline; there is no thread and no event loop. A vla-eval server may keep
state of each episode.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from proctor.errors import ConnectionLost, ProtocolError, strip_control_codes
from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.policies.remote.connection import ConnectionSettings, ServerConnection, server_label
from proctor.protocols import openpi, vla_eval
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo
from proctor.protocols.vla_eval import Message, MessageType
from proctor.system.platform.optional import LOAD_ERRORS, import_failure
from proctor.types import EpisodeSpec

try:
    from websockets.client import ClientProtocol
    from websockets.exceptions import WebSocketException
    from websockets.frames import Frame, Opcode
    from websockets.protocol import State
    from websockets.uri import parse_uri
except LOAD_ERRORS as error:
    raise import_failure(error, "websockets", "wire") from None

try:
    from websockets.speedups import apply_mask
except ImportError:  # a wheel without the C extension
    from websockets.utils import apply_mask

_READ_BYTES = 2**16
_SEND_BUFFER_BYTES = 4 * 2**20
"""Size of the send buffer: it holds whole images, so a sender need not wait for the receiver."""
_MAX_FRAGMENTS, _MAX_TEXT = 4096, 2**16
"""Maximum fragments of a message, and last bytes to keep of a text, which is a traceback."""
_OF_MESSAGES = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class WebSocket:
    """WebSocket connection to a server."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        """Connect."""
        self._address = address
        self._frames: deque[Frame] = deque()
        self._until = time.monotonic() + settings.connect_s
        scheme = "wss" if address.encrypted else "ws"
        host = f"[{address.host}]" if ":" in address.host else address.host
        uri = parse_uri(f"{scheme}://{host}:{address.port}{address.path}")
        self._protocol = ClientProtocol(uri, max_size=settings.most_bytes)
        with self._losing():
            self._socket = _connected(address, settings.connect_s)
        try:
            with self._losing():
                self._shake_hands(settings.api_key)
        except ConnectionLost:
            self._socket.close()
            raise

    def send(self, frame: bytes, within_s: float) -> None:
        """Send a binary frame."""
        self._until = time.monotonic() + within_s
        with self._losing():
            self._flush()
            for part in _framed(frame):  # the library's own function copies images twice more
                self._socket.sendall(part)

    def receive(self, within_s: float) -> bytes | str:
        """Return the next message: bytes, or a str if the server sent text."""
        self._until = time.monotonic() + within_s
        with self._losing():
            frame = self._next_frame()
            kind, parts = frame.opcode, [bytes(frame.data)]
            while not frame.fin:
                frame = self._next_frame()
                parts.append(bytes(frame.data))
                if len(parts) > _MAX_FRAGMENTS:
                    raise OSError(f"a message of more than {_MAX_FRAGMENTS} fragments")
            message = b"".join(parts)
            if kind is Opcode.TEXT:
                return message[-_MAX_TEXT:].decode(errors="replace")
            return message

    def close(self) -> None:
        """Close the connection; a blocked call of another thread ends."""
        with contextlib.suppress(OSError, WebSocketException):
            self._socket.settimeout(0.2)
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(1000)
                self._send(self._protocol.data_to_send())
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _shake_hands(self, api_key: str | None) -> None:
        request = self._protocol.connect()
        if api_key is not None:
            request.headers["Authorization"] = f"Api-Key {api_key}"
        self._protocol.send_request(request)
        self._flush()
        while self._protocol.state is State.CONNECTING and self._protocol.handshake_exc is None:
            self._read()
        if self._protocol.handshake_exc is not None:
            raise self._protocol.handshake_exc

    def _next_frame(self) -> Frame:
        """Return the next frame of a message; the protocol object handles control frames."""
        while not self._frames:
            self._read()
        return self._frames.popleft()

    def _read(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        data = self._socket.recv(_READ_BYTES)
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in _OF_MESSAGES:
                self._frames.append(event)
        self._flush()
        if self._protocol.state in (State.CLOSING, State.CLOSED) and not self._frames:
            raise ConnectionResetError(_why_closed(self._protocol))

    def _flush(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        self._send(self._protocol.data_to_send())

    def _send(self, parts: list[bytes]) -> None:
        for part in parts:
            if part:
                self._socket.sendall(part)

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        """Raise every network error as ConnectionLost."""
        try:
            yield
        except TimeoutError:
            raise ConnectionLost(f"{self._address} does not answer in time") from None
        except (OSError, WebSocketException, EOFError) as error:
            reason = str(error) or type(error).__name__
            raise ConnectionLost(
                strip_control_codes(f"{self._address} is lost: {reason}", 300)
            ) from None


def _connected(address: Address, within_s: float) -> socket.socket:
    made = socket.create_connection((address.host, address.port), timeout=within_s)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not address.encrypted:
        return made
    try:
        return ssl.create_default_context().wrap_socket(made, server_hostname=address.host)
    except BaseException:
        made.close()
        raise


def _framed(data: bytes) -> tuple[bytes, bytes]:
    """Return a binary message as one frame: header and masked payload."""
    size, mask = len(data), secrets.token_bytes(4)
    if size < 126:
        head = struct.pack("!BB", 0x82, 0x80 | size)
    elif size < 2**16:
        head = struct.pack("!BBH", 0x82, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x82, 0x80 | 127, size)
    return head + mask, apply_mask(data, mask)


def _why_closed(protocol: ClientProtocol) -> str:
    code, reason = protocol.close_code, protocol.close_reason
    return f"the server closed the connection ({code}{f', {reason}' if reason else ''})"


class OpenpiConnection(ServerConnection):
    """Connection over one WebSocket; the protocol has no episodes."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        """Connect and read the server's metadata."""
        self._settings = settings
        self._socket = WebSocket(address, settings)
        try:
            frame = self._socket.receive(settings.connect_s)
            self.server_info: ServerInfo | None = openpi.decode_metadata(frame)
            self.label = server_label(frame)
            self.expected_inputs: tuple[str, ...] = ()
            self.is_stateful = self.server_info is not None and self.server_info.remembers
        except ProtocolError:
            self._socket.close()
            raise

    def infer(self, request: InferenceRequest) -> Array:
        """Send an inference request; return the actions."""
        self._socket.send(openpi.encode_request(request), self._settings.answer_s)
        reply = openpi.decode_reply(self._socket.receive(self._settings.answer_s))
        return reply.required_actions()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


_MAX_HELLO = 2**18


class VlaEvalConnection:
    """Connection over one WebSocket."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        """Connect and exchange hello messages."""
        self._settings = settings
        self._seq = 0
        self._socket = WebSocket(address, settings)
        try:
            self._send(MessageType.HELLO, vla_eval.hello_payload())
            frame = self._socket.receive(settings.connect_s)
            if len(frame) > _MAX_HELLO:
                raise ProtocolError(
                    f"the server's hello has {len(frame)} bytes", code="protocol.too-large"
                )
            answer = vla_eval.decode(frame)
            self.server_info: ServerInfo | None = vla_eval.decode_hello(answer, frame)
            self.label = server_label(answer.payload)
            self.expected_inputs: tuple[str, ...] = ()
            self.is_stateful = self.server_info is None or self.server_info.remembers
        except ProtocolError:
            self._socket.close()
            raise

    def start_episode(self, spec: EpisodeSpec) -> None:
        """Tell the server that an episode starts."""
        self._send(MessageType.EPISODE_START, vla_eval.episode_payload(spec))

    def infer(self, request: InferenceRequest) -> Array:
        """Send an inference request; return the actions."""
        self._send(MessageType.OBSERVATION, vla_eval.observation_payload(request))
        frame = self._socket.receive(self._settings.answer_s)
        answer = vla_eval.decode(frame)
        actions = vla_eval.decode_reply(answer, frame).required_actions()
        if answer.seq != self._seq:  # after a timeout the connection is closed, so none is late
            raise ProtocolError(
                f"the server replied to message {answer.seq}, expected {self._seq}",
                code="protocol.wrong-sequence",
            )
        return actions

    def end_episode(self) -> None:
        """Tell the server that the episode has ended."""
        self._send(MessageType.EPISODE_END, {})

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _send(self, kind: MessageType, payload: Mapping[str, Any]) -> None:
        self._seq += 1
        frame = vla_eval.encode(Message(kind, payload, self._seq))
        self._socket.send(frame, self._settings.answer_s)
