"""vla-eval's conversation: hello, then episodes of observations, each answered by an action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proctor.errors import ProctorError, WireError, one_line
from proctor.features import Array
from proctor.serving.counter import Counter
from proctor.serving.desk import Guest
from proctor.serving.limits import Limits
from proctor.serving.websocket import Line, Talk
from proctor.wire import vla_eval
from proctor.wire.records import Ask
from proctor.wire.vla_eval import Kind, Message


@dataclass
class _Client:
    """Who asks: theirs want one action for every observation, ours whole chunks."""

    guest: Guest
    whole: bool = False
    left: list[Array] = field(default_factory=list)


def talk(counter: Counter, limits: Limits) -> Talk:
    """Return the protocol, for a policy."""

    async def hold(line: Line) -> None:
        with counter.guest() as guest:
            client = _Client(guest)
            while True:
                seq = 0
                try:
                    message = vla_eval.decode(await line.hear(), limits.most_bytes)
                    seq = message.seq
                    answer = await _answer(counter, client, message)
                except ProctorError as error:
                    answer = Message(Kind.ERROR, {"error": one_line(str(error))}, seq)
                if answer is not None:
                    await line.say(vla_eval.encode(answer))

    pages: dict[str, Callable[[], dict[str, Any]]] = {
        vla_eval.HEALTH_PATH: counter.health,
        vla_eval.CONFIG_PATH: lambda: {"max_batch_size": counter.desk.most, "max_wait_time": 0.0},
    }
    return Talk(hold, pages)


async def _answer(counter: Counter, client: _Client, message: Message) -> Message | None:
    """Return what a message is answered with, if with anything."""
    match message.kind:
        case Kind.HELLO:
            client.whole = vla_eval.is_ours(message)
            return Message(Kind.HELLO, vla_eval.hello(counter.about), message.seq)
        case Kind.EPISODE_START | Kind.EPISODE_END:
            client.left.clear()
            counter.desk.end_episode(client.guest)
            return None
        case Kind.OBSERVATION:
            actions = await _actions(counter, client, vla_eval.ask_of(message))
            return Message(Kind.ACTION, vla_eval.actions(actions), message.seq)
        case _:
            raise WireError(f"a client does not say {message.kind.value}")


async def _actions(counter: Counter, client: _Client, ask: Ask) -> Array:
    cameras = [key for key in ask.observation if key.startswith(vla_eval.IMAGES)]
    state = next((name for name in vla_eval.STATES if name in ask.observation), vla_eval.STATES[0])
    aliases = counter.inputs.aliases(cameras, state)
    if client.left:
        counter.see(client.guest, ask, aliases)
        return client.left.pop(0)
    answered = await counter.answer(client.guest, ask, aliases)
    if client.whole:
        return answered.actions
    client.left = list(answered.actions)
    return client.left.pop(0)
