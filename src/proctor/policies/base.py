"""What a policy is: observations of any number of episodes in, one action chunk for each out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from proctor.definition import PRESENTATION
from proctor.features import Array, Interface
from proctor.types import EpisodeSpec


@dataclass
class PolicyConfig:
    """Flags every policy has. A policy's own config inherits from this one."""

    type: str = field(default="", metadata={"help": "which policy"})
    pad_to: int | None = field(default=None, metadata={"hidden": True} | PRESENTATION)
    """Set by --eval.strict: run every batch at this size, whatever the load."""


class Placement(Enum):
    """Where ``act`` runs: once in the engine for all episodes, or inside each worker.

    A scripted policy costs less than the message that would ask for it, so it sits in the worker.
    """

    ENGINE = "engine"
    WORKER = "worker"


@dataclass(frozen=True)
class Query:
    """One episode that needs actions: which, how far it is, and the policy's own state for it."""

    spec: EpisodeSpec
    step: int
    state: Any


@dataclass(frozen=True)
class Batch:
    """Queries that are answered together.

    ``observations[key]`` has shape [B, n_obs_steps, ...], oldest first; before the episode's first
    steps there is nothing, so its first observation is repeated.
    """

    queries: list[Query]
    observations: dict[str, Array]


class Policy(Protocol):
    """A policy holds weights, never an episode: what an episode needs lives in ``Query.state``.

    One that is slow at first may have ``warm_up(features, most)``: a generator that prepares for
    batches of up to ``most`` queries. It runs while the simulators start, and is left where it is
    when the first of them asks. One whose last bits depend on the rest of the batch has
    ``bit_exact = False``: an audit then compares outcomes and returns instead of digests.
    One with a network says in ``computes_on`` where that runs: "cpu", or an accelerator's name; the
    default number of simulators depends on it.
    """

    name: str
    inputs: tuple[str, ...]
    n_obs_steps: int
    n_action_steps: int
    placement: Placement

    def new_episode(self, spec: EpisodeSpec) -> Any:
        """Return the state of a fresh episode (generators, histories); None where there is none."""

    def act(self, batch: Batch) -> Array:
        """Return actions [B, n_action_steps, action size], row i for query i.

        May change the states in the queries; must keep nothing else, and row i must not depend on
        the other rows.
        """

    def protocol(self) -> dict[str, Any]:
        """Return what, beside its config's fields, defines an episode, as JSON values.

        Such as hashes of the files it was read from. A policy that resolves its config further says
        the whole of it under ``config``.
        """


@dataclass(frozen=True)
class PolicyPlugin:
    """How a policy is found: its config class and how to make it for an interface."""

    config: type[PolicyConfig]
    make: Callable[[Any, Interface], Policy]
    summary: str
    open_field: str | None = None
    """The config's field that takes --policy flags it does not know by name; None: refuse them."""
    has_network: bool = False
    """Making it takes seconds, for torch is loaded, and as a rule it looks at images."""
