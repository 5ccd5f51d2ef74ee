"""What every wire carries: a question of one episode, and what a server says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import msgspec

from proctor.errors import ProtocolError
from proctor.features import Array, Feature, FeatureKind
from proctor.protocols.msgpack_arrays import PROCTOR_KEY
from proctor.types import EpisodeSpec, Task

_Text = Annotated[str, msgspec.Meta(max_length=10_000)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Side = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class Protocol(Enum):
    """A way to talk to a policy that is served."""

    OPENPI = "openpi"
    GROOT = "groot"
    VLA_EVAL = "vla-eval"
    LEROBOT = "lerobot"


@dataclass(frozen=True)
class InferenceRequest:
    """One question: what is seen and said, and between two of ours, in which episode.

    ``observation`` goes by the names of the wire. With ``history`` each array has an axis of time
    before all others, as long as the policy looks back.
    """

    observation: Mapping[str, Array]
    prompt: str = ""
    episode: EpisodeSpec | None = None
    step: int = 0
    history: bool = False


_MAX_ACTION_NUMBERS = 2**20


def check_action_count(numbers: int) -> None:
    """Refuse more actions than a chunk ever has, before they are joined or converted.

    Raises:
        WireError: there are more.
    """
    if numbers > _MAX_ACTION_NUMBERS:
        raise ProtocolError(
            f"the actions are {numbers} numbers, at most {_MAX_ACTION_NUMBERS} are read",
            code="protocol.too-large",
        )


@dataclass(frozen=True)
class InferenceReply:
    """The actions [T, A] that answer a question, or what the server says instead."""

    actions: Array | None = None
    error: str | None = None
    parts: tuple[str, ...] = ()
    """What the server calls the columns, from left to right, where it has names for them."""

    def __post_init__(self) -> None:
        """Refuse a chunk that is no chunk by its size.

        Raises:
            WireError: it is too large.
        """
        check_action_count(0 if self.actions is None else self.actions.size)


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
    """Return which episode a question is of, as a tree; None where it does not say."""
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
    """Return a question whose episode is in ``tree``; None: it does not say.

    Raises:
        WireError: the tree is no episode.
    """
    if tree is None:
        return InferenceRequest(observation, prompt)
    try:
        said = msgspec.convert(tree, _Episode)
    except msgspec.ValidationError as error:
        raise ProtocolError(
            f"{PROCTOR_KEY!r} names no episode: {error}", code="protocol.invalid-episode"
        ) from None
    task = Task(
        said.suite, said.task_id, said.name, said.instruction, said.max_steps, max(1, said.fps)
    )
    spec = EpisodeSpec(task, said.index, said.seed, said.init_state, said.world)
    return InferenceRequest(observation, prompt, spec, said.step, said.history)


@dataclass(frozen=True)
class ObservationField:
    """One thing that a served policy looks at."""

    kind: FeatureKind
    shape: Annotated[list[_Side], msgspec.Meta(max_length=8)]
    dtype: Annotated[str, msgspec.Meta(pattern=r"^(bool|u?int(8|16|32|64)|float(16|32|64))$")]

    @property
    def feature(self) -> Feature:
        """The same in our own words."""
        return Feature(self.kind, tuple(self.shape), self.dtype)


@dataclass(frozen=True)
class ServerInfo:
    """What a server of ours says of its policy when one of ours asks."""

    policy: _Text
    inputs: dict[str, ObservationField]
    action_size: Annotated[int, msgspec.Meta(ge=1, le=10**6)]
    n_obs_steps: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    n_action_steps: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None
    fingerprint: _Text = ""
    """Of all that defines its actions."""
    language_conditioned: bool = False
    bit_exact: bool = True
    remembers: bool = True
    """Whether it keeps something of an episode between two questions."""
    asked_every: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None
    """Steps from one question to the next that what it keeps is made for; None: any."""
    format: Annotated[int, msgspec.Meta(ge=1)] = field(default=1)

    def tree(self) -> dict[str, Any]:
        """Return it as a tree."""
        told: dict[str, Any] = msgspec.to_builtins(self)
        return told


def parse_server_info(tree: Any) -> ServerInfo | None:
    """Return what a server of ours said; None where it is somebody else's.

    Raises:
        WireError: it said something else under our name.
    """
    if tree is None:
        return None
    try:
        return msgspec.convert(tree, ServerInfo)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise ProtocolError(
            f"the server says nothing of ours under {PROCTOR_KEY!r}: {error}",
            code="protocol.invalid-server-info",
        ) from None
