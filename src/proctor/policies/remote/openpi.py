"""Connection to an openpi policy server."""

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
    """Connection over one WebSocket; the protocol has no episodes."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        """Connect and read the server's metadata."""
        self._settings = settings
        self._socket = WebSocket(address, settings)
        try:
            frame = self._socket.receive(settings.connect_s)
            self.server_info: ServerInfo | None = openpi.decode_metadata(frame)
            self.label = server_label(frame)
            self.expected_inputs: tuple[str, ...] = ()
            self.is_stateful = self.server_info is not None and self.server_info.remembers
        except ProtocolError:
            self._socket.close()
            raise

    def start_episode(self, spec: EpisodeSpec) -> None:
        """Do nothing: the protocol has no episodes."""

    def infer(self, request: InferenceRequest) -> Array:
        """Send an inference request; return the actions."""
        self._socket.send(openpi.encode_request(request), self._settings.answer_s)
        reply = openpi.decode_reply(self._socket.receive(self._settings.answer_s))
        if reply.actions is None:
            raise ProtocolError(
                f"the server says: {summarize_traceback(reply.error or '')}",
                code="server.request-failed",
            )
        return reply.actions

    def end_episode(self) -> None:
        """Do nothing: the protocol has no episodes."""

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
