"""Records that all protocols share: inference requests, replies and server descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import msgspec

from proctor.errors import ProtocolError, summarize_traceback
from proctor.features import Array, Feature, FeatureKind
from proctor.protocols.formats.msgpack_arrays import PROCTOR_KEY
from proctor.types import EpisodeSpec, Task

_Text = Annotated[str, msgspec.Meta(max_length=10_000)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Side = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class Protocol(Enum):
    """A network protocol for policy inference."""

    OPENPI = "openpi"
    GROOT = "groot"
    VLA_EVAL = "vla-eval"
    LEROBOT = "lerobot"


@dataclass(frozen=True)
class InferenceRequest:
    """One inference request: observation and prompt.

    ``observation`` uses the protocol's names. With ``history`` every array has a leading time axis
    of ``n_obs_steps``. Only Proctor's clients send ``episode`` and ``step``.
    """

    observation: Mapping[str, Array]
    prompt: str = ""
    episode: EpisodeSpec | None = None
    step: int = 0
    history: bool = False


_MAX_ACTION_NUMBERS = 2**20


def check_action_count(numbers: int) -> None:
    """Check that an action chunk has a plausible size, before arrays are joined or converted."""
    if numbers > _MAX_ACTION_NUMBERS:
        raise ProtocolError(
            f"the action chunk has {numbers} numbers; the limit is {_MAX_ACTION_NUMBERS}",
            code="protocol.too-large",
        )


@dataclass(frozen=True)
class InferenceReply:
    """The action chunk [T, A] for a request, or the server's error message."""

    actions: Array | None = None
    error: str | None = None
    parts: tuple[str, ...] = ()
    """Names of the action groups from left to right, where the server sends names."""

    def __post_init__(self) -> None:
        """Check the size of the chunk."""
        check_action_count(0 if self.actions is None else self.actions.size)

    def required_actions(self) -> Array:
        """Return the actions; raise the server's error if it sent one."""
        if self.actions is None:
            raise ProtocolError(
                f"the server says: {summarize_traceback(self.error or '')}",
                code="server.request-failed",
            )
        return self.actions


@dataclass(frozen=True)
class _Episode:
    suite: _Text
    task_id: _Count
    name: _Text
    instruction: _Text
    max_steps: _Count
    fps: _Count
    index: _Count
    seed: _Count
    init_state: _Count | None
    world: _Text
    step: _Count
    history: bool


def encode_episode(request: InferenceRequest) -> dict[str, Any] | None:
    """Return the episode of a request as a map; None if the request names no episode."""
    spec = request.episode
    if spec is None:
        return None
    task = spec.task
    return {
        "suite": task.suite,
        "task_id": task.task_id,
        "name": task.name,
        "instruction": task.instruction,
        "max_steps": task.max_steps,
        "fps": task.fps,
        "index": spec.index,
        "seed": spec.seed,
        "init_state": spec.init_state,
        "world": spec.world,
        "step": request.step,
        "history": request.history,
    }


def decode_episode_request(
    observation: Mapping[str, Array], prompt: str, tree: Any
) -> InferenceRequest:
    """Return a request for the episode in ``tree``; with None, a request without an episode."""
    if tree is None:
        return InferenceRequest(observation, prompt)
    try:
        sent = msgspec.convert(tree, _Episode)
    except msgspec.ValidationError as error:
        raise ProtocolError(
            f"{PROCTOR_KEY!r} does not describe an episode: {error}",
            code="protocol.invalid-episode",
        ) from None
    task = Task(
        sent.suite, sent.task_id, sent.name, sent.instruction, sent.max_steps, max(1, sent.fps)
    )
    spec = EpisodeSpec(task, sent.index, sent.seed, sent.init_state, sent.world)
    return InferenceRequest(observation, prompt, spec, sent.step, sent.history)


@dataclass(frozen=True)
class ObservationField:
    """One input feature of a served policy."""

    kind: FeatureKind
    shape: Annotated[list[_Side], msgspec.Meta(max_length=8)]
    dtype: Annotated[str, msgspec.Meta(pattern=r"^(bool|u?int(8|16|32|64)|float(16|32|64))$")]

    @property
    def feature(self) -> Feature:
        """The same as a Feature."""
        return Feature(self.kind, tuple(self.shape), self.dtype)


@dataclass(frozen=True)
class ServerInfo:
    """A Proctor server's description of its policy, sent to Proctor's clients."""

    policy: _Text
    inputs: dict[str, ObservationField]
    action_size: Annotated[int, msgspec.Meta(ge=1, le=10**6)]
    n_obs_steps: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    n_action_steps: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None
    fingerprint: _Text = ""
    """Hash of everything that defines the policy's actions."""
    language_conditioned: bool = False
    bit_exact: bool = True
    remembers: bool = True
    """Whether the policy keeps state of an episode between two requests."""
    asked_every: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None
    """Steps between two requests that the policy's state assumes; None: any number."""
    format: Annotated[int, msgspec.Meta(ge=1)] = field(default=1)

    def tree(self) -> dict[str, Any]:
        """Return the description as a map."""
        tree: dict[str, Any] = msgspec.to_builtins(self)
        return tree


def parse_server_info(tree: Any) -> ServerInfo | None:
    """Return a Proctor server's description; None if the server is not Proctor's."""
    if tree is None:
        return None
    try:
        return msgspec.convert(tree, ServerInfo)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise ProtocolError(
            f"{PROCTOR_KEY!r} is not a description of a server: {error}",
            code="protocol.invalid-server-info",
        ) from None
