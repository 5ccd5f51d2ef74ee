"""Connection to LeRobot's policy server, or to a Proctor server with LeRobot's protocol.

LeRobot's server holds one observation for all clients. So all episodes of a run share one
connection to it and send their requests one after the other.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from proctor.errors import ConnectionLost, ProtocolError, UsageError, strip_control_codes
from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.policies.remote.connection import ConnectionSettings, ServerConnection
from proctor.protocols import lerobot
from proctor.protocols.formats.msgpack_arrays import unpack
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo, parse_server_info
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # Proctor prints one line instead
try:
    import grpc
except LOAD_ERRORS as error:
    raise import_failure(error, "grpc", "wire", "grpcio") from None

_ROOM = 2**16


def make_connector(
    setup: lerobot.PolicySetup | None,
) -> Callable[[Address, ConnectionSettings], ServerConnection]:
    """Return a connector that opens one shared channel to each LeRobot server.

    The server is told to load ``setup``. Proctor servers get a channel per connection.
    """
    shared: dict[str, _GrpcChannel] = {}
    lock = threading.Lock()

    def connect(address: Address, settings: ConnectionSettings) -> ServerConnection:
        with lock:
            existing = shared.get(address.url)
            if existing is not None and not existing.lost:
                return _LerobotConnection(existing)
            channel = _GrpcChannel(address, settings, setup)
            if channel.server_info is None:
                shared[address.url] = channel
            return _LerobotConnection(channel)

    return connect


class _GrpcChannel:
    """A gRPC channel to one server."""

    def __init__(
        self, address: Address, settings: ConnectionSettings, setup: lerobot.PolicySetup | None
    ) -> None:
        self._address, self._settings = address, settings
        self._steps = itertools.count(secrets.randbelow(2**31))  # other clients count too
        self._lock = threading.Lock()
        self.lost = False
        options = [
            ("grpc.max_receive_message_length", settings.most_bytes + _ROOM),
            ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
        ]
        host = f"[{address.host}]" if ":" in address.host else address.host
        target = f"{host}:{address.port}"
        self._channel = (
            grpc.secure_channel(target, channel_credentials(), options)
            if address.encrypted
            else grpc.insecure_channel(target, options)
        )
        try:
            self.server_info = self._meet(setup)
        except ProtocolError:
            self.close()
            raise

    def _meet(self, setup: lerobot.PolicySetup | None) -> ServerInfo | None:
        _, headers = self._call(lerobot.READY, b"", self._settings.connect_s)
        header = headers.get(lerobot.ABOUT_HEADER)
        if header is not None:
            return parse_server_info(unpack(header))
        if setup is None:
            raise UsageError(
                f"--policy.url={self._address}: LeRobot's server loads a checkpoint itself; name "
                "it with --policy.served=PATH and its type with --policy.served_type=act",
                code="flag.missing",
            )
        self._call(lerobot.SETUP, lerobot.encode_setup(setup), self._settings.answer_s)
        return None

    def infer(self, request: InferenceRequest) -> Array:
        """Send an inference request; return the actions."""
        answer_s = self._settings.answer_s
        with self._lock:
            step = next(self._steps)
            self._call(lerobot.OBSERVE, lerobot.encode_observation(request, step), answer_s)
            actions = lerobot.decode_actions(self._call(lerobot.ACT, b"", answer_s)[0], step)
        if actions is None:
            raise ProtocolError(
                "the server returned no actions; see its log", code="server.request-failed"
            )
        return actions

    def close(self) -> None:
        """Close the channel; pending calls fail."""
        self.lost = True
        self._channel.close()

    def _call(
        self, method: str, request: bytes | Iterable[bytes], within_s: float
    ) -> tuple[bytes, dict[str, Any]]:
        path = f"/{lerobot.SERVICE}/{method}"
        kind = self._channel.unary_unary
        if not isinstance(request, bytes):
            kind = self._channel.stream_unary
        key = self._settings.api_key
        headers = None if key is None else (("authorization", f"Api-Key {key}"),)
        try:
            reply, call = kind(path).with_call(request, timeout=within_s, metadata=headers)
        except ValueError:  # the channel is closed
            raise ConnectionLost(f"the connection to {self._address} is closed") from None
        except grpc.RpcError as error:
            raise self._error_of(error) from None
        return reply, dict(call.initial_metadata() or ())

    def _error_of(self, error: Any) -> ProtocolError:
        code, details = error.code(), strip_control_codes(str(error.details()), 300)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            self.lost = True
            return ConnectionLost(f"{self._address} does not answer in time")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            self.lost = True
            return ConnectionLost(f"{self._address} is lost: {details}")
        return ProtocolError(f"the server says: {details}", code="server.request-failed")


def channel_credentials() -> Any:
    """Trust gRPC's own list of authorities, or that of SSL_CERT_FILE as Python's TLS does."""
    file = Path(os.environ.get("SSL_CERT_FILE", ""))
    return grpc.ssl_channel_credentials(file.read_bytes() if file.is_file() else None)


class _LerobotConnection(ServerConnection):
    """A channel as a ``ServerConnection`` of one episode."""

    def __init__(self, channel: _GrpcChannel) -> None:
        self._grpc = channel
        self.server_info = channel.server_info
        self.label = ""
        self.expected_inputs: tuple[str, ...] = ()
        self.is_stateful = channel.server_info is not None and channel.server_info.remembers

    def infer(self, request: InferenceRequest) -> Array:
        """Send an inference request; return the actions."""
        return self._grpc.infer(request)

    def close(self) -> None:
        """Close the channel."""
        self._grpc.close()
