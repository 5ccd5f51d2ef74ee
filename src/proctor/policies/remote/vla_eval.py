"""A connection to a server of vla-eval's: it may remember its episode, and is told of each."""

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
    """Asks over one WebSocket."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        """Connect and say hello.

        Raises:
            WireError: there is no server, or one of another protocol.
        """
        self._settings = settings
        self._seq = 0
        self._socket = WebSocket(address, settings)
        try:
            self._say(MessageType.HELLO, vla_eval.hello_payload())
            frame = self._socket.receive(settings.connect_s)
            if len(frame) > _MAX_HELLO:
                raise ProtocolError(f"the server's hello is of {len(frame)} bytes")
            answer = vla_eval.decode(frame)
            self.about: ServerInfo | None = vla_eval.decode_hello(answer, frame)
            self.word = server_label(answer.payload)
            self.wants: tuple[str, ...] = ()
            self.remembers = self.about is None or self.about.remembers
        except ProtocolError:
            self._socket.close()
            raise

    def begin(self, spec: EpisodeSpec) -> None:
        """Say that an episode begins."""
        self._say(MessageType.EPISODE_START, vla_eval.episode_payload(spec))

    def ask(self, ask: InferenceRequest) -> Array:
        """Return the actions that answer a question."""
        self._say(MessageType.OBSERVATION, vla_eval.observation_payload(ask))
        frame = self._socket.receive(self._settings.answer_s)
        answer = vla_eval.decode(frame)
        reply = vla_eval.decode_reply(answer, frame)
        if reply.actions is None:
            raise ProtocolError(f"the server says: {summarize_traceback(reply.error or '')}")
        if answer.seq != self._seq:  # whoever waits no more has hung up: it is nobody's
            raise ProtocolError(f"the server answers question {answer.seq}, asked was {self._seq}")
        return reply.actions

    def end(self) -> None:
        """Say that the episode has ended."""
        self._say(MessageType.EPISODE_END, {})

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _say(self, kind: MessageType, payload: Mapping[str, Any]) -> None:
        self._seq += 1
        frame = vla_eval.encode(Message(kind, payload, self._seq))
        self._socket.send(frame, self._settings.answer_s)
