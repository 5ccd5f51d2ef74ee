"""Serves vla-eval's protocol: hello, then episodes of observations, each with an action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proctor.errors import ProctorError, ProtocolError, strip_control_codes
from proctor.features import Array
from proctor.protocols import vla_eval
from proctor.protocols.inference_messages import InferenceRequest
from proctor.protocols.vla_eval import Message, MessageType
from proctor.serving.batcher import ClientSession
from proctor.serving.service import PolicyService
from proctor.serving.websocket import ClientConnection, WebSocketHandler
from proctor.system.limits import ServerLimits


@dataclass
class _Client:
    """A client. vla-eval's gets one action per observation, Proctor's a whole chunk."""

    session: ClientSession
    whole: bool = False
    left: list[Array] = field(default_factory=list)


def handler(service: PolicyService, limits: ServerLimits) -> WebSocketHandler:
    """Return the handler of this protocol for a policy."""

    async def handle(connection: ClientConnection) -> None:
        with service.session() as session:
            client = _Client(session)
            while True:
                seq = 0
                try:
                    message = vla_eval.decode(await connection.receive(), limits.max_bytes)
                    seq = message.seq
                    answer = await _answer(service, client, message)
                except ProctorError as error:
                    answer = Message(
                        MessageType.ERROR, {"error": strip_control_codes(str(error))}, seq
                    )
                if answer is not None:
                    await connection.send(vla_eval.encode(answer))

    pages: dict[str, Callable[[], dict[str, Any]]] = {
        vla_eval.HEALTH_PATH: service.health,
        vla_eval.CONFIG_PATH: lambda: {
            "max_batch_size": service.batcher.max_batch,
            "max_wait_time": 0.0,
        },
    }
    return WebSocketHandler(handle, pages)


async def _answer(service: PolicyService, client: _Client, message: Message) -> Message | None:
    """Return the reply to a message; None if it needs none."""
    match message.kind:
        case MessageType.HELLO:
            client.whole = vla_eval.is_proctor_client(message)
            return Message(
                MessageType.HELLO, vla_eval.hello_payload(service.server_info), message.seq
            )
        case MessageType.EPISODE_START | MessageType.EPISODE_END:
            client.left.clear()
            service.batcher.end_episode(client.session)
            return None
        case MessageType.OBSERVATION:
            actions = await _actions(service, client, vla_eval.decode_request(message))
            return Message(MessageType.ACTION, vla_eval.actions_payload(actions), message.seq)
        case _:
            raise ProtocolError(
                f"clients must not send {message.kind.value}", code="protocol.unexpected-message"
            )


async def _actions(service: PolicyService, client: _Client, request: InferenceRequest) -> Array:
    cameras = [key for key in request.observation if key.startswith(vla_eval.IMAGES)]
    state = next(
        (name for name in vla_eval.STATES if name in request.observation), vla_eval.STATES[0]
    )
    aliases = service.inputs.aliases(cameras, state)
    if client.left:
        service.observe(client.session, request, aliases)
        return client.left.pop(0)
    reply = await service.answer(client.session, request, aliases)
    if client.whole:
        return reply.actions
    client.left = list(reply.actions)
    return client.left.pop(0)
