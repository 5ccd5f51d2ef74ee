"""Connection to a vla-eval policy server, which may keep state of each episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proctor.errors import ProtocolError, summarize_traceback
from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.policies.remote.connection import ConnectionSettings, server_label
from proctor.policies.remote.websocket import WebSocket
from proctor.protocols import vla_eval
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo
from proctor.protocols.vla_eval import Message, MessageType
from proctor.types import EpisodeSpec

_MAX_HELLO = 2**18


class VlaEvalConnection:
    """Connection over one WebSocket."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        """Connect and exchange hello messages."""
        self._settings = settings
        self._seq = 0
        self._socket = WebSocket(address, settings)
        try:
            self._send(MessageType.HELLO, vla_eval.hello_payload())
            frame = self._socket.receive(settings.connect_s)
            if len(frame) > _MAX_HELLO:
                raise ProtocolError(
                    f"the server's hello has {len(frame)} bytes", code="protocol.too-large"
                )
            answer = vla_eval.decode(frame)
            self.server_info: ServerInfo | None = vla_eval.decode_hello(answer, frame)
            self.label = server_label(answer.payload)
            self.expected_inputs: tuple[str, ...] = ()
            self.is_stateful = self.server_info is None or self.server_info.remembers
        except ProtocolError:
            self._socket.close()
            raise

    def start_episode(self, spec: EpisodeSpec) -> None:
        """Tell the server that an episode starts."""
        self._send(MessageType.EPISODE_START, vla_eval.episode_payload(spec))

    def infer(self, request: InferenceRequest) -> Array:
        """Send an inference request; return the actions."""
        self._send(MessageType.OBSERVATION, vla_eval.observation_payload(request))
        frame = self._socket.receive(self._settings.answer_s)
        answer = vla_eval.decode(frame)
        reply = vla_eval.decode_reply(answer, frame)
        if reply.actions is None:
            raise ProtocolError(
                f"the server says: {summarize_traceback(reply.error or '')}",
                code="server.request-failed",
            )
        if answer.seq != self._seq:  # after a timeout the connection is closed, so none is late
            raise ProtocolError(
                f"the server replied to message {answer.seq}, expected {self._seq}",
                code="protocol.wrong-sequence",
            )
        return reply.actions

    def end_episode(self) -> None:
        """Tell the server that the episode has ended."""
        self._send(MessageType.EPISODE_END, {})

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _send(self, kind: MessageType, payload: Mapping[str, Any]) -> None:
        self._seq += 1
        frame = vla_eval.encode(Message(kind, payload, self._seq))
        self._socket.send(frame, self._settings.answer_s)
