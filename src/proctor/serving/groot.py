"""GR00T's conversation: requests and replies over ZeroMQ, a guest for every client and row."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from proctor.errors import ProctorError, WireError, one_line
from proctor.serving.counter import Counter
from proctor.serving.desk import Answered, Guest
from proctor.serving.inputs import Inputs
from proctor.serving.limits import Limits
from proctor.serving.zeromq import Conversation, Talk
from proctor.wire import groot, groot_dialect
from proctor.wire.packing import OURS
from proctor.wire.records import Ask


def talk(counter: Counter, limits: Limits) -> Talk:
    """Return the protocol, for a policy."""
    return Talk(_Talk(counter, limits).hold, _refusal)


def _refusal(why: str) -> bytes:
    return groot.encode_reply({"error": one_line(why)})


class _Talk:
    """Answers requests; the guests of a client are there as long as its connection."""

    def __init__(self, counter: Counter, limits: Limits) -> None:
        self._counter, self._limits = counter, limits

    @contextlib.contextmanager
    def hold(self) -> Iterator[Conversation]:
        """Answer one client."""
        guests: list[Guest] = []

        async def answer(frame: bytes) -> bytes:
            try:
                envelope = groot.read_envelope(frame)
                if not self._limits.admits(envelope.api_token):
                    raise WireError("Unauthorized: the API token is missing or wrong")
                conversation.is_known = True
                return await self._reply(guests, groot.decode_request(envelope))
            except ProctorError as error:
                return _refusal(str(error))

        conversation = Conversation(answer, is_known=self._limits.api_key is None)
        try:
            yield conversation
        finally:
            for guest in guests:
                self._counter.desk.leave(guest)

    async def _reply(self, guests: list[Guest], request: groot.Request) -> bytes:
        match request.endpoint:
            case groot.PING:
                return groot.encode_reply({"status": "ok", "message": "Server is running"})
            case groot.ABOUT:
                return groot.encode_reply({OURS: self._counter.about.tree()})
            case groot.RESET:
                for guest in guests:
                    self._counter.desk.end_episode(guest)
                return groot.encode_reply({"status": "ok"})
            case groot.CONFIG:
                return groot.encode_reply(self._modalities())
            case groot.ACT:
                return await self._act(guests, groot.asked_of(request.data), newer=request.newer)
            case groot.KILL:
                raise WireError("a client does not end this server")
            case other:
                raise WireError(f"Unknown endpoint: {one_line(other, 100)}")

    def _modalities(self) -> dict[str, Any]:
        names = self._counter.inputs.aliases(groot.CAMERAS, groot.STATE_NAME)
        group, _, key = groot_dialect.PROMPT_NAME.partition("/")
        keys: dict[str, list[str]] = {"video": [], "state": [], "action": ["action"], group: [key]}
        declared = [f"{groot.STATE}{name}" for name, _ in self._counter.inputs.state_parts]
        if declared and groot.STATE_NAME in names.values():
            names = {k: name for k, name in names.items() if name != groot.STATE_NAME}
            names |= {name: name for name in declared}
        for name in names.values():
            group, _, key = name.partition("/")
            keys[group].append(key)
        back = range(1 - self._counter.inputs.n_obs_steps, 1)
        ahead = range(self._counter.about.n_action_steps or 1)
        moments = {"video": back, "state": back, "action": ahead}
        return {
            name: groot_dialect.modality(moments.get(name, [0]), found)
            for name, found in keys.items()
        }

    async def _act(self, guests: list[Guest], asked: groot.Asked, *, newer: bool) -> bytes:
        seated = self._counter.desk.seated(guests, len(asked.rows))
        answers = await asyncio.gather(
            *(self._one(guest, ask) for guest, ask in zip(seated, asked.rows, strict=True))
        )
        chunks = [answered.actions for answered in answers]
        return groot.encode_actions(chunks, nested=asked.nested, newer=newer)

    async def _one(self, guest: Guest, ask: Ask) -> Answered:
        cameras = [key for key in ask.observation if key.startswith(groot.VIDEO)]
        ask, state = _joined(ask, self._counter.inputs)
        aliases = self._counter.inputs.aliases(cameras, state)
        if ask.episode is None:
            ask = groot.looking_back(ask, self._counter.inputs.n_obs_steps)
        return await self._counter.answer(guest, ask, aliases)


def _joined(ask: Ask, inputs: Inputs) -> tuple[Ask, str]:
    """Return a request with its state in one array, and that array's name.

    Parts are joined in the order that the server declares. A client's own order says nothing.

    Raises:
        WireError: no order is declared, or the client sends other parts.
    """
    sent = [key for key in ask.observation if key.startswith(groot.STATE)]
    if len(sent) < 2 or inputs.state_key is None:
        return ask, sent[0] if sent else groot.STATE_NAME
    parts = {f"{groot.STATE}{name}": size for name, size in inputs.state_parts}
    named = one_line(", ".join(sent), 300)
    if not parts:
        raise WireError(
            f"the order of {named} in the policy's state is not known: send it as one part, or "
            "start the server with --state_parts=NAME:COUNT,NAME:COUNT"
        )
    sizes = {key: ask.observation[key].shape[-1:] for key in sent}
    if sizes != {key: (size,) for key, size in parts.items()}:
        wanted = ", ".join(f"{key} of {size} numbers" for key, size in parts.items())
        raise WireError(f"the policy wants {wanted}; the client sends {named}")
    try:
        whole = np.concatenate([ask.observation[key] for key in parts], axis=-1)
    except ValueError:
        raise WireError(f"{named} differ in their rows or moments") from None
    rest = {key: values for key, values in ask.observation.items() if key not in parts}
    name = ", ".join(parts)
    return replace(ask, observation={**rest, name: whole}), name
