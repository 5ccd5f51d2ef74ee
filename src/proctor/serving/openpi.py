"""openpi's conversation: metadata first, then questions and answers."""

from __future__ import annotations

from proctor.errors import ProctorError, ProtocolError, strip_control_codes
from proctor.protocols import openpi
from proctor.serving.service import PolicyService
from proctor.serving.websocket import ClientConnection, WebSocketHandler


def handler(service: PolicyService) -> WebSocketHandler:
    """Return the protocol, for a policy."""
    aliases = service.inputs.aliases(openpi.CAMERAS, openpi.STATE)

    async def hold(line: ClientConnection) -> None:
        await line.say(openpi.encode_metadata(service.about))
        with service.session() as session:
            while True:
                frame = await line.hear()
                try:
                    if isinstance(frame, str):
                        raise ProtocolError("questions come in binary frames")
                    answered = await service.answer(session, openpi.decode_request(frame), aliases)
                except ProctorError as error:
                    await line.say(strip_control_codes(str(error)))
                    continue
                timing = {"infer_ms": answered.act_s * 1e3, "wait_ms": answered.wait_s * 1e3}
                await line.say(openpi.encode_reply(answered.actions, timing))

    return WebSocketHandler(hold, {openpi.HEALTH_PATH: lambda: "OK\n"})
