"""A connection to a server of openpi's."""

from __future__ import annotations

from proctor.errors import WireError, what_happened
from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.policies.remote.link import LinkSettings, word_of
from proctor.policies.remote.websocket import WebSocket
from proctor.types import EpisodeSpec
from proctor.wire import openpi
from proctor.wire.records import About, Ask


class OpenpiLink:
    """Asks over one WebSocket. The protocol knows no episodes: nothing is said of them."""

    def __init__(self, address: Address, settings: LinkSettings) -> None:
        """Connect and hear what the server is.

        Raises:
            WireError: there is none, or one of another protocol.
        """
        self._settings = settings
        self._socket = WebSocket(address, settings)
        try:
            frame = self._socket.receive(settings.connect_s)
            self.about: About | None = openpi.decode_metadata(frame)
            self.word = word_of(frame)
            self.wants: tuple[str, ...] = ()
            self.remembers = self.about is not None and self.about.remembers
        except WireError:
            self._socket.close()
            raise

    def begin(self, spec: EpisodeSpec) -> None:
        """Say nothing: the protocol has no word for it."""

    def ask(self, ask: Ask) -> Array:
        """Return the actions that answer a question."""
        self._socket.send(openpi.encode_ask(ask), self._settings.answer_s)
        reply = openpi.decode_reply(self._socket.receive(self._settings.answer_s))
        if reply.actions is None:
            raise WireError(f"the server says: {what_happened(reply.trouble or '')}")
        return reply.actions

    def end(self) -> None:
        """Say nothing: the protocol has no word for it."""

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
