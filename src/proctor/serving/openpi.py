"""openpi's conversation: metadata first, then questions and answers."""

from __future__ import annotations

from proctor.errors import ProctorError, WireError, one_line
from proctor.serving.counter import Counter
from proctor.serving.websocket import Line, Talk
from proctor.wire import openpi


def talk(counter: Counter) -> Talk:
    """Return the protocol, for a policy."""
    aliases = counter.inputs.aliases(openpi.CAMERAS, openpi.STATE)

    async def hold(line: Line) -> None:
        await line.say(openpi.encode_metadata(counter.about))
        with counter.guest() as guest:
            while True:
                frame = await line.hear()
                try:
                    if isinstance(frame, str):
                        raise WireError("questions come in binary frames")
                    answered = await counter.answer(guest, openpi.decode_ask(frame), aliases)
                except ProctorError as error:
                    await line.say(one_line(str(error)))
                    continue
                timing = {"infer_ms": answered.act_s * 1e3, "wait_ms": answered.wait_s * 1e3}
                await line.say(openpi.encode_reply(answered.actions, timing))

    return Talk(hold, {openpi.HEALTH_PATH: lambda: "OK\n"})
