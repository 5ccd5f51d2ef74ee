"""The gRPC calls of an actor: each method of LeRobot's LearnerService once, without retries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from proctor.errors import ProtocolError, strip_control_codes
from proctor.policies.remote.lerobot import channel_credentials
from proctor.protocols import actor_learner as protocol
from proctor.protocols.formats.protobuf import MAX_MESSAGE_BYTES, ChunkAssembler, encode_chunks
from proctor.rl.link.links import ActorPosition
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # Proctor prints one line instead
try:
    import grpc
except LOAD_ERRORS as error:
    raise import_failure(error, "grpc", "wire", "grpcio") from None

_READY_S = 5.0
_ROOM = 2**16
_KEEPALIVE_MS = 20_000


@dataclass(frozen=True)
class LearnerAddress:
    """Where a learner listens, and its key."""

    host: str = "127.0.0.1"
    port: int = protocol.DEFAULT_PORT
    api_key: str | None = field(default=None, repr=False)
    encrypted: bool = False
    """Whether the learner has TLS; its certificate must be trusted (SSL_CERT_FILE)."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ChannelLost(Exception):
    """The learner cannot be reached, or did not answer in time; a later call may succeed."""


class LearnerChannel:
    """A gRPC channel to one learner."""

    def __init__(self, address: LearnerAddress, actor: str) -> None:
        self._actor, self._key = actor, address.api_key
        self.is_lerobot = False
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + _ROOM),
            ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),  # finds a machine that is gone
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
        ]
        self._channel = (
            grpc.secure_channel(str(address), channel_credentials(), options)
            if address.encrypted
            else grpc.insecure_channel(str(address), options)
        )

    def ready(self) -> ActorPosition:
        """Ask whether the learner is ready, and what it has stored of this actor.

        Raises:
            ChannelLost: the learner does not answer.
            ProtocolError: it refuses the call.
        """
        call = self._channel.unary_unary(protocol.call_path(protocol.READY))
        try:
            _, answer = call.with_call(b"", timeout=_READY_S, metadata=self._metadata())
        except (grpc.RpcError, ValueError) as error:
            raise _error_of(error) from None
        text = dict(answer.initial_metadata() or ()).get(protocol.POSITION_HEADER)
        self.is_lerobot = text is None
        if text is None:
            return ActorPosition()
        try:
            return ActorPosition(*(int(number) for number in str(text).split(" ")))
        except (TypeError, ValueError):
            raise ProtocolError(
                "the learner's reply has no position", code="protocol.invalid-metadata"
            ) from None

    def send(self, method: str, payload: bytes, first: int | None, timeout_s: float) -> None:
        """Send one payload and wait for the answer.

        Raises:
            ChannelLost: no answer came.
            ProtocolError: the learner refuses the payload.
        """
        call = self._channel.stream_unary(protocol.call_path(method))
        try:
            call(encode_chunks(payload), timeout=timeout_s, metadata=self._metadata(first))
        except (grpc.RpcError, ValueError) as error:
            raise _error_of(error) from None

    def parameters(self) -> Iterator[bytes]:
        """Yield the payloads of weights as they come, until the stream ends.

        Raises:
            ChannelLost: the learner is lost.
            ProtocolError: it refuses the call, or sends invalid chunks.
        """
        assembler = ChunkAssembler(protocol.MAX_PAYLOAD_BYTES)
        call = self._channel.unary_stream(protocol.call_path(protocol.PARAMETERS))
        try:
            for frame in call(b"", metadata=self._metadata()):
                payload = assembler.add(frame)
                if payload is not None:
                    yield payload
        except (grpc.RpcError, ValueError) as error:
            raise _error_of(error) from None

    def close(self) -> None:
        """Close the channel; open calls fail."""
        self._channel.close()

    def _metadata(self, first: int | None = None) -> tuple[tuple[str, str], ...]:
        metadata = [(protocol.ACTOR_HEADER, self._actor)]
        if self._key is not None:
            metadata.append(("authorization", f"Api-Key {self._key}"))
        if first is not None:
            metadata.append((protocol.FIRST_HEADER, str(first)))
        return tuple(metadata)


def _error_of(error: Any) -> Exception:
    if isinstance(error, ValueError):
        return ChannelLost("the channel is closed")
    code, details = error.code(), strip_control_codes(str(error.details()), 300)
    passing = (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
    if code in passing:
        return ChannelLost(details)
    return ProtocolError(f"the learner says: {details}", code="rl.learner-refused")
