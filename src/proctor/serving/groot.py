"""Serves GR00T's protocol over ZeroMQ, with one session per client and batch row."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from proctor.errors import ProctorError, ProtocolError, strip_control_codes
from proctor.protocols import groot, groot_dialect
from proctor.protocols.formats.msgpack_arrays import PROCTOR_KEY
from proctor.protocols.inference_messages import InferenceRequest
from proctor.serving.batcher import BatchedReply, ClientSession
from proctor.serving.inputs import Inputs
from proctor.serving.service import PolicyService
from proctor.serving.zeromq import ZmqClient, ZmqHandler
from proctor.system.limits import ServerLimits


def handler(service: PolicyService, limits: ServerLimits) -> ZmqHandler:
    """Return the handler of this protocol for a policy."""
    return ZmqHandler(_GrootHandler(service, limits).handle, _refusal)


def _refusal(why: str) -> bytes:
    return groot.encode_reply({"error": strip_control_codes(why)})


class _GrootHandler:
    """Answers requests; a client's sessions live as long as its connection."""

    def __init__(self, service: PolicyService, limits: ServerLimits) -> None:
        self._service, self._limits = service, limits

    @contextlib.contextmanager
    def handle(self) -> Iterator[ZmqClient]:
        """Serve one client while the context is open."""
        sessions: list[ClientSession] = []

        async def answer(frame: bytes) -> bytes:
            try:
                envelope = groot.read_envelope(frame)
                if not self._limits.accepts_key(envelope.api_token):
                    raise ProtocolError(
                        "Unauthorized: the API token is missing or wrong",
                        code="protocol.unauthorized",
                    )
                client.authenticated = True
                return await self._reply(sessions, groot.decode_request(envelope))
            except ProctorError as error:
                return _refusal(str(error))

        client = ZmqClient(answer, authenticated=self._limits.api_key is None)
        try:
            yield client
        finally:
            for session in sessions:
                self._service.batcher.close_session(session)

    async def _reply(self, sessions: list[ClientSession], request: groot.GrootRequest) -> bytes:
        match request.endpoint:
            case groot.PING:
                return groot.encode_reply({"status": "ok", "message": "Server is running"})
            case groot.ABOUT:
                return groot.encode_reply({PROCTOR_KEY: self._service.server_info.tree()})
            case groot.RESET:
                for session in sessions:
                    self._service.batcher.end_episode(session)
                return groot.encode_reply({"status": "ok"})
            case groot.CONFIG:
                return groot.encode_reply(self._modalities())
            case groot.ACT:
                return await self._act(
                    sessions, groot.decode_query(request.data), msgpack_numpy=request.msgpack_numpy
                )
            case groot.KILL:
                raise ProtocolError(
                    "clients cannot stop this server", code="serve.shutdown-refused"
                )
            case other:
                raise ProtocolError(
                    f"Unknown endpoint: {strip_control_codes(other, 100)}",
                    code="protocol.unknown-endpoint",
                )

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
        ahead = range(self._service.server_info.n_action_steps or 1)
        moments = {"video": back, "state": back, "action": ahead}
        return {
            name: groot_dialect.modality_config(moments.get(name, [0]), found)
            for name, found in keys.items()
        }

    async def _act(
        self, sessions: list[ClientSession], query: groot.GrootQuery, *, msgpack_numpy: bool
    ) -> bytes:
        row_sessions = self._service.batcher.sessions_for(sessions, len(query.rows))
        answers = await asyncio.gather(
            *(
                self._one(session, request)
                for session, request in zip(row_sessions, query.rows, strict=True)
            )
        )
        chunks = [answered.actions for answered in answers]
        return groot.encode_actions(chunks, nested=query.nested, msgpack_numpy=msgpack_numpy)

    async def _one(self, session: ClientSession, request: InferenceRequest) -> BatchedReply:
        cameras = [key for key in request.observation if key.startswith(groot.VIDEO)]
        request, state = _joined(request, self._service.inputs)
        aliases = self._service.inputs.aliases(cameras, state)
        if request.episode is None:
            request = groot.crop_history(request, self._service.inputs.n_obs_steps)
        return await self._service.answer(session, request, aliases)


def _joined(request: InferenceRequest, inputs: Inputs) -> tuple[InferenceRequest, str]:
    """Return a request with its state as one array, and the name of that array.

    Parts are concatenated in the server's declared order; the client's order has no meaning.
    """
    sent = [key for key in request.observation if key.startswith(groot.STATE)]
    if len(sent) < 2 or inputs.state_key is None:
        return request, sent[0] if sent else groot.STATE_NAME
    parts = {f"{groot.STATE}{name}": size for name, size in inputs.state_parts}
    named = strip_control_codes(", ".join(sent), 300)
    if not parts:
        raise ProtocolError(
            f"the order of {named} in the policy's state is unknown; send the state as one part, "
            "or start the server with --state_parts=NAME:COUNT,NAME:COUNT",
            code="serve.unknown-state-order",
        )
    sizes = {key: request.observation[key].shape[-1:] for key in sent}
    if sizes != {key: (size,) for key, size in parts.items()}:
        wanted = ", ".join(f"{key} of {size} numbers" for key, size in parts.items())
        raise ProtocolError(
            f"the policy needs {wanted}; the client sent {named}", code="protocol.wrong-shape"
        )
    try:
        whole = np.concatenate([request.observation[key] for key in parts], axis=-1)
    except ValueError:
        raise ProtocolError(
            f"{named} have different batch sizes or time steps", code="protocol.wrong-shape"
        ) from None
    rest = {key: values for key, values in request.observation.items() if key not in parts}
    name = ", ".join(parts)
    return replace(request, observation={**rest, name: whole}), name
