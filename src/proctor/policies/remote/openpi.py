"""A connection to a server of openpi's."""

from __future__ import annotations

from proctor.errors import ProtocolError, summarize_traceback
from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.policies.remote.connection import ConnectionSettings, server_label
from proctor.policies.remote.websocket import WebSocket
from proctor.protocols import openpi
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo
from proctor.types import EpisodeSpec


class OpenpiConnection:
    """Asks over one WebSocket. The protocol knows no episodes: nothing is said of them."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        """Connect and hear what the server is.

        Raises:
            WireError: there is none, or one of another protocol.
        """
        self._settings = settings
        self._socket = WebSocket(address, settings)
        try:
            frame = self._socket.receive(settings.connect_s)
            self.about: ServerInfo | None = openpi.decode_metadata(frame)
            self.word = server_label(frame)
            self.wants: tuple[str, ...] = ()
            self.remembers = self.about is not None and self.about.remembers
        except ProtocolError:
            self._socket.close()
            raise

    def begin(self, spec: EpisodeSpec) -> None:
        """Say nothing: the protocol has no word for it."""

    def ask(self, ask: InferenceRequest) -> Array:
        """Return the actions that answer a question."""
        self._socket.send(openpi.encode_request(ask), self._settings.answer_s)
        reply = openpi.decode_reply(self._socket.receive(self._settings.answer_s))
        if reply.actions is None:
            raise ProtocolError(f"the server says: {summarize_traceback(reply.error or '')}")
        return reply.actions

    def end(self) -> None:
        """Say nothing: the protocol has no word for it."""

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
