"""A connection to LeRobot's policy server, or to one of ours that speaks as it does.

LeRobot's server has room for one observation, whoever sends it: all episodes of a run share one
connection to it, and ask one after the other.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from typing import Any

from proctor.errors import ConnectionLost, ProtocolError, UsageError, strip_control_codes
from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.policies.remote.connection import ConnectionSettings, ServerConnection
from proctor.protocols import lerobot
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo, parse_server_info
from proctor.protocols.msgpack_arrays import unpack
from proctor.system.optional import LOAD_ERRORS, import_failure
from proctor.types import EpisodeSpec

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it prints, we say in a line of our own
try:
    import grpc
except LOAD_ERRORS as error:
    raise import_failure(error, "grpc", "wire", "grpcio") from None

_ROOM = 2**16


def make_connector(
    setup: lerobot.PolicySetup | None,
) -> Callable[[Address, ConnectionSettings], ServerConnection]:
    """Return what connects: once to a server of LeRobot's, which is told to play ``setup``."""
    shared: dict[str, _GrpcChannel] = {}
    lock = threading.Lock()

    def dial(address: Address, settings: ConnectionSettings) -> ServerConnection:
        with lock:
            known = shared.get(address.url)
            if known is not None and not known.lost:
                return _LerobotConnection(known)
            line = _GrpcChannel(address, settings, setup)
            if line.about is None:
                shared[address.url] = line
            return _LerobotConnection(line)

    return dial


class _GrpcChannel:
    """One channel."""

    def __init__(
        self, address: Address, settings: ConnectionSettings, setup: lerobot.PolicySetup | None
    ) -> None:
        self._address, self._settings = address, settings
        self._steps = itertools.count(secrets.randbelow(2**31))  # others count too
        self._lock = threading.Lock()
        self.lost = False
        options = [
            ("grpc.max_receive_message_length", settings.most_bytes + _ROOM),
            ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
        ]
        host = f"[{address.host}]" if ":" in address.host else address.host
        target = f"{host}:{address.port}"
        self._channel = (
            grpc.secure_channel(target, grpc.ssl_channel_credentials(), options)
            if address.encrypted
            else grpc.insecure_channel(target, options)
        )
        try:
            self.about = self._meet(setup)
        except ProtocolError:
            self.close()
            raise

    def _meet(self, setup: lerobot.PolicySetup | None) -> ServerInfo | None:
        _, headers = self._call(lerobot.READY, b"", self._settings.connect_s)
        said = headers.get(lerobot.ABOUT_HEADER)
        if said is not None:
            return parse_server_info(unpack(said))
        if setup is None:
            raise UsageError(
                f"--policy.url={self._address}: LeRobot's server loads a checkpoint itself; say "
                "which with --policy.served=PATH and of which type with --policy.served_type=act"
            )
        self._call(lerobot.SETUP, lerobot.encode_setup(setup), self._settings.answer_s)
        return None

    def ask(self, ask: InferenceRequest) -> Array:
        """Return the actions that answer a question."""
        answer_s = self._settings.answer_s
        with self._lock:
            step = next(self._steps)
            self._call(lerobot.OBSERVE, lerobot.encode_observation(ask, step), answer_s)
            actions = lerobot.decode_actions(self._call(lerobot.ACT, b"", answer_s)[0], step)
        if actions is None:
            raise ProtocolError("the server gives no actions; its own log says why")
        return actions

    def close(self) -> None:
        """Hang up; whoever waits for an answer waits no more."""
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
            raise ConnectionLost(f"{self._address} is not asked any more") from None
        except grpc.RpcError as error:
            raise self._said(error) from None
        return reply, dict(call.initial_metadata() or ())

    def _said(self, error: Any) -> ProtocolError:
        code, details = error.code(), strip_control_codes(str(error.details()), 300)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            self.lost = True
            return ConnectionLost(f"{self._address} does not answer in time")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            self.lost = True
            return ConnectionLost(f"{self._address} is lost: {details}")
        return ProtocolError(f"the server says: {details}")


class _LerobotConnection:
    """A line, as episodes have it."""

    def __init__(self, line: _GrpcChannel) -> None:
        self._line = line
        self.about = line.about
        self.word = ""
        self.wants: tuple[str, ...] = ()
        self.remembers = line.about is not None and line.about.remembers

    def begin(self, spec: EpisodeSpec) -> None:
        """Say nothing: the protocol has no word for it."""

    def ask(self, ask: InferenceRequest) -> Array:
        """Return the actions that answer a question."""
        return self._line.ask(ask)

    def end(self) -> None:
        """Say nothing: the protocol has no word for it."""

    def close(self) -> None:
        """Hang up."""
        self._line.close()
