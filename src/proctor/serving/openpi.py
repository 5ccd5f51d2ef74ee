"""Serves openpi's protocol: metadata first, then requests and replies."""

from __future__ import annotations

from proctor.errors import ProctorError, ProtocolError, strip_control_codes
from proctor.protocols import openpi
from proctor.serving.service import PolicyService
from proctor.serving.websocket import ClientConnection, WebSocketHandler


def handler(service: PolicyService) -> WebSocketHandler:
    """Return the handler of this protocol for a policy."""
    aliases = service.inputs.aliases(openpi.CAMERAS, openpi.STATE)

    async def handle(connection: ClientConnection) -> None:
        await connection.send(openpi.encode_metadata(service.server_info))
        with service.session() as session:
            while True:
                frame = await connection.receive()
                try:
                    if isinstance(frame, str):
                        raise ProtocolError(
                            "send requests as binary frames", code="protocol.unexpected-message"
                        )
                    reply = await service.answer(session, openpi.decode_request(frame), aliases)
                except ProctorError as error:
                    await connection.send(strip_control_codes(str(error)))
                    continue
                timing = {"infer_ms": reply.act_s * 1e3, "wait_ms": reply.wait_s * 1e3}
                await connection.send(openpi.encode_reply(reply.actions, timing))

    return WebSocketHandler(handle, {openpi.HEALTH_PATH: lambda: "OK\n"})
