"""One connection to a server, whatever is spoken over it. One thread uses it at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo
from proctor.protocols.msgpack_arrays import MAX_MESSAGE_BYTES
from proctor.types import EpisodeSpec


@dataclass(frozen=True)
class ConnectionSettings:
    """How servers are talked to."""

    connect_s: float = 10.0
    answer_s: float = 120.0
    api_key: str | None = None
    most_bytes: int = MAX_MESSAGE_BYTES
    warn: Callable[[str], None] = lambda line: None
    """Told what a user should know of a server's answers."""


class ServerConnection(Protocol):
    """A connection. Everything it does may raise WireError, and PeerLost where it is of no use."""

    about: ServerInfo | None
    """What a server of ours says of its policy."""
    word: str
    """All that it says of itself: another word on the same day is another policy, it may be."""
    remembers: bool
    """Whether it may remember an episode: then nobody else can go on with it."""

    wants: tuple[str, ...]
    """The names that it looks at, where it says so."""

    def begin(self, spec: EpisodeSpec) -> None:
        """Say that an episode begins."""

    def ask(self, ask: InferenceRequest) -> Array:
        """Return the actions [T, A] that answer a question."""

    def end(self) -> None:
        """Say that the episode has ended."""

    def close(self) -> None:
        """Hang up."""


def server_label(said: bytes | str | Mapping[str, Any]) -> str:
    """Return what a server says of itself as a short text, the same for the same."""
    told = said if isinstance(said, bytes) else repr(said).encode("utf-8", "replace")
    return hashlib.sha256(told).hexdigest()[:16]


Connector: TypeAlias = Callable[[Address], ServerConnection]
