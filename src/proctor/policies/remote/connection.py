"""Interface of a connection to a policy server, the same for all protocols."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo
from proctor.system.limits import MAX_MESSAGE_BYTES
from proctor.types import EpisodeSpec


@dataclass(frozen=True)
class ConnectionSettings:
    """Timeouts, key and limits of connections to servers."""

    connect_s: float = 10.0
    answer_s: float = 120.0
    api_key: str | None = None
    most_bytes: int = MAX_MESSAGE_BYTES
    warn: Callable[[str], None] = lambda line: None
    """Called with notes for the user on a server's replies."""


class ServerConnection(Protocol):
    """A connection to a policy server; one thread uses it at a time.

    Every method may raise ProtocolError, and ConnectionLost if the connection is unusable.
    """

    server_info: ServerInfo | None
    """The policy's description by a Proctor server; None for other servers."""
    label: str
    """Hash of the server's metadata: a changed label may mean another policy."""
    is_stateful: bool
    """Whether the server may keep state of an episode, so that no other server can continue it."""

    expected_inputs: tuple[str, ...]
    """Names of the inputs that the server requires, if it lists them."""

    def start_episode(self, spec: EpisodeSpec) -> None:
        """Tell the server that an episode starts; do nothing if the protocol has no episodes."""
        return

    def infer(self, request: InferenceRequest) -> Array:
        """Send an inference request; return the actions [T, A]."""

    def end_episode(self) -> None:
        """Tell the server that the episode has ended; do nothing if the protocol has none."""
        return

    def close(self) -> None:
        """Close the connection."""


def server_label(description: bytes | str | Mapping[str, Any]) -> str:
    """Return a short hash of a server's metadata."""
    data = (
        description
        if isinstance(description, bytes)
        else repr(description).encode("utf-8", "replace")
    )
    return hashlib.sha256(data).hexdigest()[:16]


Connector: TypeAlias = Callable[[Address], ServerConnection]
