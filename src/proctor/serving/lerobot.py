"""Serves LeRobot's protocol: a robot sends observations and requests actions, over gRPC.

Pickles are read by ``protocols/pickle/reader``, which creates only plain values and records.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from proctor.errors import ProctorError, ProtocolError, strip_control_codes
from proctor.protocols import lerobot
from proctor.protocols.formats.msgpack_arrays import pack
from proctor.protocols.inference_messages import Protocol
from proctor.protocols.preauth import PRE_AUTH
from proctor.serving.batcher import ClientSession, RequestBatcher
from proctor.serving.calls import ClientSilent, OpenCall
from proctor.serving.grpc_bridge import (
    GrpcCall,
    GrpcServer,
    Handler,
    connection_options,
    server_credentials,
)
from proctor.serving.senders import CALLS_OF_PEER, Senders
from proctor.serving.service import PolicyService
from proctor.system.limits import OpenEndpoint, ServerLimits, cannot_listen
from proctor.system.loopback import REFUSAL
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

try:
    import grpc
except LOAD_ERRORS as error:
    raise import_failure(error, "grpc", "wire", "grpcio") from None

_WAIT_S = 2.0
_FPS = 30.0
"""LeRobot's defaults: how long GetActions waits for an observation, and the action rate."""
_ROOM = 2**16


@dataclass
class _Robot:
    """A robot: its requested policy, and its newest observation without a reply."""

    sessions: list[ClientSession] = field(default_factory=list)
    last_request_at: float = 0.0
    setup: lerobot.PolicySetup | None = None
    newest: asyncio.Queue[lerobot.TimedObservation] = field(
        default_factory=lambda: asyncio.Queue(maxsize=1)
    )


class _Robots:
    """The active robots. The one that was silent for longest makes room for a new one."""

    def __init__(self, batcher: RequestBatcher, limits: ServerLimits) -> None:
        self._batcher, self._limits = batcher, limits
        self._known: OrderedDict[str, _Robot] = OrderedDict()

    def client(self, name: str) -> _Robot:
        """Return the robot called ``name``, and drop robots that were silent for too long."""
        now = time.monotonic()
        robot = self._known.setdefault(name, _Robot())
        robot.last_request_at = now
        self._known.move_to_end(name)
        while len(self._known) > self._limits.max_clients or self._first_is_silent(now):
            forgotten = self._known.popitem(last=False)[1]
            for session in forgotten.sessions:
                self._batcher.close_session(session)
            forgotten.sessions.clear()
        return robot

    def _first_is_silent(self, now: float) -> bool:
        return now - next(iter(self._known.values())).last_request_at > self._limits.idle_s


async def listen(
    service: PolicyService, port: int, limits: ServerLimits, senders: Senders
) -> OpenEndpoint:
    """Listen on ``port`` (0: any free one)."""
    server = GrpcServer(
        lerobot.SERVICE,
        _Service(service, limits, senders).handlers(),
        [
            ("grpc.max_receive_message_length", limits.max_bytes + _ROOM),
            ("grpc.max_send_message_length", limits.max_bytes + _ROOM),
            *connection_options(limits),
            ("grpc.max_metadata_size", PRE_AUTH[Protocol.LEROBOT].max_bytes),
            ("grpc.absolute_max_metadata_size", PRE_AUTH[Protocol.LEROBOT].max_bytes),
        ],
        CALLS_OF_PEER * limits.max_clients,
    )
    host = f"[{limits.host}]" if ":" in limits.host else limits.host
    bound = server.bind(f"{host}:{port}", server_credentials(limits))
    if not bound:
        raise cannot_listen(
            limits.host, port, "the port is in use, or the address does not belong to this machine"
        )
    server.start()
    return OpenEndpoint(bound, server.close)


class _Service:
    def __init__(self, service: PolicyService, limits: ServerLimits, senders: Senders) -> None:
        self._service, self._limits, self._senders = service, limits, senders
        self._robots = _Robots(service.batcher, limits)

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each method.

        All requests are read as streams: gRPC waits without limit for the message of a unary call.
        """
        return {
            lerobot.READY: self._guarded(self._unary(self._ready)),
            lerobot.SETUP: self._guarded(self._unary(self._set_up)),
            lerobot.OBSERVE: self._guarded(self._observe),
            lerobot.ACT: self._guarded(self._unary(self._act)),
        }

    def _unary(self, call: Callable[..., Awaitable[bytes]]) -> Callable[..., Awaitable[bytes]]:
        """Return a handler of calls with one message."""

        async def unary(parts: AsyncIterator[bytes], context: GrpcCall, opened: OpenCall) -> bytes:
            return await call(await opened.only_message(parts), context)

        return unary

    def _guarded(self, call: Callable[..., Awaitable[bytes]]) -> Callable[..., Awaitable[bytes]]:
        """Return a handler that checks origin, key and number of calls, and reports errors."""

        async def guarded(request: Any, context: GrpcCall) -> bytes:
            metadata = context.invocation_metadata()
            origins = [str(value) for name, value in metadata if name == "origin"]
            if self._limits.is_foreign_origin(origins):
                context.abort(grpc.StatusCode.PERMISSION_DENIED, REFUSAL)
            key = str(dict(metadata).get("authorization", "")).removeprefix("Api-Key ")
            if not self._limits.accepts_key(key):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "the API key is wrong")
            opened = OpenCall.counted(self._senders, context)
            if opened is None:
                reason = f"a connection may have at most {CALLS_OF_PEER} open calls"
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
            try:
                return await call(request, context, opened)
            except ClientSilent:
                reason = "the client was silent for too long (--idle_s), or its slot was needed"
                context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
            except ProctorError as error:
                reason = strip_control_codes(str(error))
                print(f"lerobot {context.peer()}: {reason}", file=sys.stderr, flush=True)
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)

        return guarded

    async def _ready(self, request: bytes, context: GrpcCall) -> bytes:
        robot = self._robots.client(context.peer())
        robot.newest = asyncio.Queue(maxsize=1)
        for session in robot.sessions:
            self._service.batcher.end_episode(session)
        about = pack(self._service.server_info.tree())
        context.send_initial_metadata(((lerobot.ABOUT_HEADER, about),))
        return b""

    async def _set_up(self, request: bytes, context: GrpcCall) -> bytes:
        robot = self._robots.client(context.peer())
        robot.setup = lerobot.decode_setup(request)
        wanted, ours = robot.setup.path, self._service.server_info.policy
        print(
            strip_control_codes(f"lerobot {context.peer()} requested {wanted}; serving {ours}"),
            file=sys.stderr,
        )
        return b""

    async def _observe(
        self, parts: AsyncIterator[bytes], context: GrpcCall, opened: OpenCall
    ) -> bytes:
        robot = self._robots.client(context.peer())
        assembler = lerobot.ObservationAssembler(self._limits.max_bytes)
        async for part in opened.messages(parts):
            observed = assembler.add(part)
            if observed is not None:
                opened.done_with_message()
                if robot.newest.full():
                    robot.newest.get_nowait()
                robot.newest.put_nowait(observed)
        return b""

    async def _act(self, request: bytes, context: GrpcCall) -> bytes:
        robot = self._robots.client(context.peer())
        try:
            observed = await asyncio.wait_for(robot.newest.get(), _WAIT_S)
        except TimeoutError:
            return b""  # no observation, no actions
        setup = robot.setup
        inference = lerobot.decode_request(observed, setup or lerobot.PolicySetup("", ""))
        if setup is None and inference.episode is None:
            raise ProtocolError(
                "call SendPolicyInstructions before sending observations",
                code="protocol.unexpected-message",
            )
        (session,) = self._service.batcher.sessions_for(robot.sessions, 1)
        actions = (await self._service.answer(session, inference, {})).actions
        if inference.episode is not None or setup is None:
            return lerobot.encode_own_actions(actions)
        return lerobot.encode_actions(actions[: setup.actions_per_chunk], observed, _FPS)
