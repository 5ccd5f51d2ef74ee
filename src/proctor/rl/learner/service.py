"""The learner's gRPC service: LeRobot's LearnerService for LeRobot's actors and Proctor's own.

Each call checks origin and key before it reads a message. Transitions of Proctor's actors carry
numbers; their calls are answered when the learner has stored them. LeRobot's actors keep one stream
open and are never answered.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from proctor.errors import (
    ConnectionLost,
    ProctorError,
    ProtocolError,
    UsageError,
    strip_control_codes,
)
from proctor.protocols import actor_learner as protocol
from proctor.protocols.formats.protobuf import MAX_MESSAGE_BYTES, ChunkAssembler, encode_chunks
from proctor.rl.link.links import LearnerEndpoint
from proctor.rl.link.payloads import (
    TransitionSpec,
    decode_interaction,
    decode_transitions,
    encode_weights,
)
from proctor.rl.transitions import Transition
from proctor.serving.grpc_bridge import (
    connection_options,
    hide_invalid_metadata,
    server_credentials,
)
from proctor.serving.senders import CALLS_OF_PEER, Sender, Senders
from proctor.system.limits import ServerLimits, cannot_listen
from proctor.system.loopback import LOOPBACK, REFUSAL
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

try:
    import grpc
except LOAD_ERRORS as error:
    raise import_failure(error, "grpc", "wire", "grpcio") from None

_SPARE_CALLS = 32
"""Calls beside those of the actors, so that strangers are refused at once."""
_ROOM = 2**16
_METADATA_BYTES = 16 * 2**10
_KEEPALIVE_MS = 20_000
_STOP_S = 0.2
_POLL_S = 0.5
_STORE_S = 300.0
"""How long an actor's call waits until the learner has stored its transitions."""
_MAX_RECEIVING = 512 * 2**20
"""Bytes of unfinished payloads of all calls together."""
DecodedT = TypeVar("DecodedT")
Reply = Callable[[Iterator[bytes], Any], Any]
Call = Callable[[Iterator[bytes], Any, Sender], Any]


@dataclass(frozen=True)
class ServiceLimits:
    """Limits of a learner's service beside those of every server."""

    max_payload_bytes: int = protocol.MAX_PAYLOAD_BYTES
    max_receiving_bytes: int = _MAX_RECEIVING
    store_s: float = _STORE_S


class _Refused(Exception):
    """A call ends with a status."""

    def __init__(self, code: Any, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class LearnerService:
    """Listens for actors and connects them to a LearnerEndpoint."""

    def __init__(
        self,
        endpoint: LearnerEndpoint,
        spec: TransitionSpec,
        server: ServerLimits,
        port: int = protocol.DEFAULT_PORT,
        limits: ServiceLimits | None = None,
    ) -> None:
        """Start to listen on ``port``; 0 means any free port."""
        if server.host not in LOOPBACK and server.api_key is None:
            raise UsageError(
                f"a learner on {server.host} needs an API key, since it accepts transitions from "
                "the network; set a key, or listen on 127.0.0.1",
                code="rl.key-missing",
            )
        self._endpoint, self._spec, self._server_limits = endpoint, spec, server
        self._limits = limits or ServiceLimits()
        self._encoded = _EncodedWeights(endpoint)
        self._stopping, self._decoding = threading.Event(), threading.Lock()
        most_calls = CALLS_OF_PEER * server.max_clients
        self._senders = Senders(server, most_calls, self._limits.max_receiving_bytes)
        most_calls += _SPARE_CALLS
        hide_invalid_metadata()
        self._calls = ThreadPoolExecutor(most_calls, "proctor-learner-call")
        self._server = grpc.server(
            self._calls,
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + _ROOM),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + _ROOM),
                *connection_options(server),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),  # ends the calls of a lost actor
                ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
                ("grpc.max_metadata_size", _METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
            ],
            maximum_concurrent_rpcs=most_calls,
        )
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(protocol.SERVICE, self._handlers())]
        )
        self.port = self._bind(port)
        self._server.start()

    def _bind(self, port: int) -> int:
        limits = self._server_limits
        host = f"[{limits.host}]" if ":" in limits.host else limits.host
        credentials = server_credentials(limits)
        try:
            bound = (
                self._server.add_insecure_port(f"{host}:{port}")
                if credentials is None
                else self._server.add_secure_port(f"{host}:{port}", credentials)
            )
        except RuntimeError:
            bound = 0
        if not bound:
            self._calls.shutdown(wait=False)
            raise cannot_listen(
                limits.host,
                port,
                "the port is in use, or the address does not belong to this machine",
            )
        return int(bound)

    def close(self) -> None:
        """End all calls. The endpoint stays open."""
        self._stopping.set()
        self._senders.close()
        self._server.stop(_STOP_S).wait()
        self._calls.shutdown(wait=False)

    def _handlers(self) -> dict[str, Any]:
        """Return the handler of each method.

        All requests are read as streams: gRPC waits without limit for the message of a unary call.
        """
        one, many = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        return {
            protocol.READY: one(self._guarded(self._ready)),
            protocol.TRANSITIONS: one(self._guarded(self._receive_transitions)),
            protocol.INTERACTIONS: one(self._guarded(self._receive_interactions)),
            protocol.PARAMETERS: many(self._guarded_stream(self._stream_parameters)),
        }

    def _guarded(self, call: Call) -> Reply:
        """Return a handler that checks the caller, and reports errors in one line."""

        def guarded(messages: Iterator[bytes], context: Any) -> bytes:
            with self._admitted(context) as sender:
                return bytes(call(messages, context, sender))
            return b""  # the actor has disconnected

        return guarded

    def _guarded_stream(self, call: Call) -> Reply:
        def guarded(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
            with self._admitted(context) as sender:
                yield from call(messages, context, sender)

        return guarded

    @contextlib.contextmanager
    def _admitted(self, context: Any) -> Iterator[Sender]:
        """Check origin and key, count the call, and turn errors into statuses."""
        sender = None
        try:
            self._check_caller(context)
            sender = self._sender(context)
            yield sender
        except _Refused as refused:
            context.abort(refused.code, str(refused))
        except ConnectionLost as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except ProctorError as error:
            reason = strip_control_codes(str(error))
            print(f"actor {context.peer()}: {reason}", file=sys.stderr, flush=True)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        except grpc.RpcError:
            return  # the actor has disconnected, or its call was cut
        finally:
            if sender is not None:
                sender.close()

    def _sender(self, context: Any) -> Sender:
        """Count a call; it is cut when it is silent and others need its place.

        LeRobot's actors open their calls before the first episode, so they may be silent for long.
        """
        own = protocol.ACTOR_HEADER in dict(context.invocation_metadata() or ())
        first_s = self._server_limits.open_s if own else self._server_limits.idle_s
        sender = self._senders.open(context.cancel, context.peer(), first_s)
        if sender is None:
            reason = "too many open calls of this connection, or of all actors"
            raise _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        return sender

    def _check_caller(self, context: Any) -> None:
        metadata = context.invocation_metadata() or ()
        origins = [str(value) for name, value in metadata if name == "origin"]
        if self._server_limits.is_foreign_origin(origins):
            raise _Refused(grpc.StatusCode.PERMISSION_DENIED, REFUSAL)
        key = str(dict(metadata).get("authorization", "")).removeprefix("Api-Key ")
        if not self._server_limits.accepts_key(key):
            raise _Refused(grpc.StatusCode.UNAUTHENTICATED, "the API key is wrong")

    def _ready(self, messages: Iterator[bytes], context: Any, sender: Sender) -> bytes:
        actor, _ = _actor_of(context)
        if actor is not None:
            position = self._endpoint.position(actor)
            text = f"{position.stored} {position.episodes} {position.transitions}"
            context.send_initial_metadata(((protocol.POSITION_HEADER, text),))
        return b""

    def _receive_transitions(
        self, messages: Iterator[bytes], context: Any, sender: Sender
    ) -> bytes:
        actor, first = _actor_of(context)
        name = context.peer() if actor is None else actor
        most_bytes = self._limits.max_payload_bytes
        for transitions in self._received(messages, sender, most_bytes, self._decode):
            while not self._endpoint.receive(name, first, transitions, _POLL_S):
                self._check_active(context)
            if first is not None:
                first += len(transitions)
        if actor is not None and first is not None:
            self._wait_stored(actor, first - 1, context)
        return b""

    def _decode(self, payload: bytes) -> list[Transition]:
        transitions = decode_transitions(payload)
        for transition in transitions:
            self._spec.check(transition)
        return transitions

    def _wait_stored(self, actor: str, number: int, context: Any) -> None:
        deadline = time.monotonic() + self._limits.store_s
        while not self._endpoint.wait_stored(actor, number, _POLL_S):
            self._check_active(context)
            if time.monotonic() > deadline:
                reason = f"the learner did not store the transitions in {self._limits.store_s:g} s"
                raise _Refused(grpc.StatusCode.DEADLINE_EXCEEDED, reason)

    def _receive_interactions(
        self, messages: Iterator[bytes], context: Any, sender: Sender
    ) -> bytes:
        most_bytes = protocol.MAX_INTERACTION_BYTES
        for message in self._received(messages, sender, most_bytes, decode_interaction):
            if isinstance(message, str):
                self._endpoint.receive_start(message)
            else:
                self._endpoint.receive_interaction(message)
        return b""

    def _received(
        self,
        messages: Iterator[bytes],
        sender: Sender,
        most_bytes: int,
        decode: Callable[[bytes], DecodedT],
    ) -> Iterator[DecodedT]:
        """Yield the decoded payloads of a stream; all calls share a limit of bytes.

        Raises:
            _Refused: the limit is reached, and no other call has paused.
        """
        assembler = ChunkAssembler(most_bytes)
        while True:
            sender.wait()
            message = next(messages, None)
            sender.work()
            if message is None:
                return
            if not sender.hold(assembler.size + len(message)):
                raise _Refused(grpc.StatusCode.UNAVAILABLE, "too many payloads; send again later")
            with self._decoding:  # one at a time: the bytes are copied
                payload = assembler.add(message)
                decoded = None if payload is None else decode(payload)
                del payload, message
            if decoded is not None:
                sender.work(proven=True)
                yield decoded
                del decoded
                sender.hold(0)

    def _stream_parameters(
        self, messages: Iterator[bytes], context: Any, sender: Sender
    ) -> Iterator[bytes]:
        actor, _ = _actor_of(context)
        count = 0
        sender.wait()  # until another of its calls is valid, other actors may get its place
        sender.silence_s = math.inf
        while context.is_active() and not self._stopping.is_set():
            payload, count = self._encoded.after(count, for_lerobot=actor is None)
            if payload is not None:
                yield from encode_chunks(payload)

    def _check_active(self, context: Any) -> None:
        if not context.is_active() or self._stopping.is_set():
            raise ConnectionLost("the call has ended")


def _actor_of(context: Any) -> tuple[str | None, int | None]:
    """Return a Proctor actor's name and its first number; None for LeRobot's actors."""
    metadata = dict(context.invocation_metadata() or ())
    name, first = (metadata.get(key) for key in (protocol.ACTOR_HEADER, protocol.FIRST_HEADER))
    if name is not None and not 0 < len(name) <= protocol.MAX_NAME:
        raise ProtocolError("an actor's name is too long", code="protocol.invalid-metadata")
    if first is None:
        return name, None
    if name is None or not first.isascii() or not first.isdigit() or not 0 < len(first) < 16:
        raise ProtocolError(
            "a transition's number is not a positive integer", code="protocol.invalid-metadata"
        )
    return name, int(first)


class _EncodedWeights:
    """The newest weights as payloads, encoded once for all actors."""

    def __init__(self, endpoint: LearnerEndpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._payloads: dict[bool, bytes] = {}
        self._count = 0

    def after(self, count: int, *, for_lerobot: bool) -> tuple[bytes | None, int]:
        """Return the newest payload and its count, or None if ``count`` is still the newest."""
        weights, newest = self._endpoint.weights_after(count, _POLL_S)
        if weights is None:
            return None, newest
        with self._lock:
            if newest > self._count:
                self._payloads, self._count = {}, newest
            if newest < self._count:
                return None, count  # newer weights came meanwhile
            if for_lerobot not in self._payloads:
                self._payloads[for_lerobot] = encode_weights(weights, for_lerobot=for_lerobot)
            return self._payloads[for_lerobot], newest
