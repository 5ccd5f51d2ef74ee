"""One connection to a server, whatever is spoken over it. One thread uses it at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.types import EpisodeSpec
from proctor.wire.packing import MOST_BYTES
from proctor.wire.records import About, Ask


@dataclass(frozen=True)
class LinkSettings:
    """How servers are talked to."""

    connect_s: float = 10.0
    answer_s: float = 120.0
    api_key: str | None = None
    most_bytes: int = MOST_BYTES


class Link(Protocol):
    """A connection. Everything it does may raise WireError, and PeerLost where it is of no use."""

    about: About | None
    """What a server of ours says of its policy."""

    def begin(self, spec: EpisodeSpec) -> None:
        """Say that an episode begins."""

    def ask(self, ask: Ask) -> Array:
        """Return the actions [T, A] that answer a question."""

    def end(self) -> None:
        """Say that the episode has ended."""

    def close(self) -> None:
        """Hang up."""


Dial: TypeAlias = Callable[[Address], Link]
