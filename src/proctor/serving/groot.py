"""GR00T's conversation: requests and replies over ZeroMQ, a guest for every client and row."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from proctor.errors import ProctorError, ProtocolError, strip_control_codes
from proctor.protocols import groot, groot_dialect
from proctor.protocols.inference_messages import InferenceRequest
from proctor.protocols.msgpack_arrays import OURS
from proctor.serving.batcher import BatchedReply, ClientSession
from proctor.serving.inputs import Inputs
from proctor.serving.limits import ServerLimits
from proctor.serving.service import PolicyService
from proctor.serving.zeromq import Conversation, ZmqHandler


def handler(service: PolicyService, limits: ServerLimits) -> ZmqHandler:
    """Return the protocol, for a policy."""
    return ZmqHandler(_GrootHandler(service, limits).hold, _refusal)


def _refusal(why: str) -> bytes:
    return groot.encode_reply({"error": strip_control_codes(why)})


class _GrootHandler:
    """Answers requests; the guests of a client are there as long as its connection."""

    def __init__(self, service: PolicyService, limits: ServerLimits) -> None:
        self._service, self._limits = service, limits

    @contextlib.contextmanager
    def hold(self) -> Iterator[Conversation]:
        """Answer one client."""
        sessions: list[ClientSession] = []

        async def answer(frame: bytes) -> bytes:
            try:
                envelope = groot.read_envelope(frame)
                if not self._limits.admits(envelope.api_token):
                    raise ProtocolError("Unauthorized: the API token is missing or wrong")
                conversation.is_known = True
                return await self._reply(sessions, groot.decode_request(envelope))
            except ProctorError as error:
                return _refusal(str(error))

        conversation = Conversation(answer, is_known=self._limits.api_key is None)
        try:
            yield conversation
        finally:
            for session in sessions:
                self._service.batcher.leave(session)

    async def _reply(self, sessions: list[ClientSession], request: groot.GrootRequest) -> bytes:
        match request.endpoint:
            case groot.PING:
                return groot.encode_reply({"status": "ok", "message": "Server is running"})
            case groot.ABOUT:
                return groot.encode_reply({OURS: self._service.about.tree()})
            case groot.RESET:
                for session in sessions:
                    self._service.batcher.end_episode(session)
                return groot.encode_reply({"status": "ok"})
            case groot.CONFIG:
                return groot.encode_reply(self._modalities())
            case groot.ACT:
                return await self._act(
                    sessions, groot.decode_query(request.data), newer=request.newer
                )
            case groot.KILL:
                raise ProtocolError("a client does not end this server")
            case other:
                raise ProtocolError(f"Unknown endpoint: {strip_control_codes(other, 100)}")

    def _modalities(self) -> dict[str, Any]:
        names = self._service.inputs.aliases(groot.CAMERAS, groot.STATE_NAME)
        group, _, key = groot_dialect.PROMPT_NAME.partition("/")
        keys: dict[str, list[str]] = {"video": [], "state": [], "action": ["action"], group: [key]}
        declared = [f"{groot.STATE}{name}" for name, _ in self._service.inputs.state_parts]
        if declared and groot.STATE_NAME in names.values():
            names = {k: name for k, name in names.items() if name != groot.STATE_NAME}
            names |= {name: name for name in declared}
        for name in names.values():
            group, _, key = name.partition("/")
            keys[group].append(key)
        back = range(1 - self._service.inputs.n_obs_steps, 1)
        ahead = range(self._service.about.n_action_steps or 1)
        moments = {"video": back, "state": back, "action": ahead}
        return {
            name: groot_dialect.modality(moments.get(name, [0]), found)
            for name, found in keys.items()
        }

    async def _act(
        self, sessions: list[ClientSession], asked: groot.GrootQuery, *, newer: bool
    ) -> bytes:
        seated = self._service.batcher.seated(sessions, len(asked.rows))
        answers = await asyncio.gather(
            *(self._one(session, ask) for session, ask in zip(seated, asked.rows, strict=True))
        )
        chunks = [answered.actions for answered in answers]
        return groot.encode_actions(chunks, nested=asked.nested, newer=newer)

    async def _one(self, session: ClientSession, ask: InferenceRequest) -> BatchedReply:
        cameras = [key for key in ask.observation if key.startswith(groot.VIDEO)]
        ask, state = _joined(ask, self._service.inputs)
        aliases = self._service.inputs.aliases(cameras, state)
        if ask.episode is None:
            ask = groot.looking_back(ask, self._service.inputs.n_obs_steps)
        return await self._service.answer(session, ask, aliases)


def _joined(ask: InferenceRequest, inputs: Inputs) -> tuple[InferenceRequest, str]:
    """Return a request with its state in one array, and that array's name.

    Parts are joined in the order that the server declares. A client's own order says nothing.

    Raises:
        WireError: no order is declared, or the client sends other parts.
    """
    sent = [key for key in ask.observation if key.startswith(groot.STATE)]
    if len(sent) < 2 or inputs.state_key is None:
        return ask, sent[0] if sent else groot.STATE_NAME
    parts = {f"{groot.STATE}{name}": size for name, size in inputs.state_parts}
    named = strip_control_codes(", ".join(sent), 300)
    if not parts:
        raise ProtocolError(
            f"the order of {named} in the policy's state is not known: send it as one part, or "
            "start the server with --state_parts=NAME:COUNT,NAME:COUNT"
        )
    sizes = {key: ask.observation[key].shape[-1:] for key in sent}
    if sizes != {key: (size,) for key, size in parts.items()}:
        wanted = ", ".join(f"{key} of {size} numbers" for key, size in parts.items())
        raise ProtocolError(f"the policy wants {wanted}; the client sends {named}")
    try:
        whole = np.concatenate([ask.observation[key] for key in parts], axis=-1)
    except ValueError:
        raise ProtocolError(f"{named} differ in their rows or moments") from None
    rest = {key: values for key, values in ask.observation.items() if key not in parts}
    name = ", ".join(parts)
    return replace(ask, observation={**rest, name: whole}), name
