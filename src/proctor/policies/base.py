"""What a policy is: observations of any number of episodes in, one action chunk for each out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from proctor.features import Array, Feature, Interface
from proctor.fingerprint import PRESENTATION
from proctor.types import EpisodeSpec, Task


@dataclass
class PolicyConfig:
    """Flags every policy has. A policy's own config inherits from this one."""

    type: str = field(default="", metadata={"help": "which policy"})
    pad_to: int | None = field(default=None, metadata={"hidden": True} | PRESENTATION)
    """Run every batch at this size, whatever the load. No flag: a run under --eval.strict makes its
    policy from a copy of the config with this set."""
    latency_steps: int | None = field(default=None, metadata={"hidden": True})
    """How many steps the world goes on while it thinks; set by --eval.latency_steps as above."""

    @property
    def replan_steps(self) -> int | None:
        """How many actions are played before it is asked again; None: told once it is made."""
        return None

    @property
    def is_stateful(self) -> bool:
        """Whether what it answers depends on its last answer."""
        return False


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


@dataclass(frozen=True)
class PolicySpec:
    """What a policy is to whoever evaluates, trains or serves it."""

    name: str
    inputs: tuple[str, ...] = ()
    n_obs_steps: int = 1
    n_action_steps: int | None = 1
    """How long its chunks are; None: it chooses for every row anew, as a remote server does."""
    placement: Placement = Placement.ENGINE
    language_conditioned: bool = False
    """Whether a task without an instruction is nothing for it."""
    worded: tuple[str, ...] = ()
    """Tasks that it was given words of its own for, by name."""
    computes_on: str | None = None
    """Where its network runs, "cpu" or an accelerator's name: the default number of simulators
    depends on it. None: it has no network."""
    rows_at_once: int | None = None
    """How many rows its device computes, however many are asked for: it is not asked about more,
    which would cost as much as twice as many. None: what is asked for."""
    bit_exact: bool = True
    """Whether a row's bits are the same whatever else is in the batch; if not, an audit compares
    outcomes and returns instead of digests."""
    remembers: bool = True
    """Whether what it does depends on the state of ``new_episode``: an episode then cannot go on
    with another that serves the same policy. Of one that makes no states it is not asked."""
    asked_every: int | None = None
    """Steps from one question of an episode to the next that its states are made for; None: any."""
    in_flight: int = 1
    """How many calls may be made at once, each by a thread of its own: more than one for what
    waits for others, and then ``act`` is asked one query at a time."""
    notes: tuple[str, ...] = ()
    """Lines the user should see once."""


class Policy(ABC):
    """A policy holds weights, never an episode: what an episode needs lives in ``Query.state``.

    Once made, it is only called from one thread, which is its own, and by one call at a time,
    unless its spec says that more may be in flight: then by as many threads, and closed by each.
    """

    spec: PolicySpec

    @abstractmethod
    def act(self, batch: Batch) -> Array | Sequence[Array]:
        """Return actions [B, n_action_steps, action size], row i for query i.

        Where the spec leaves the length open: a list of B arrays [T, action size], T at least 1.
        May change the states in the queries; must keep nothing else, and row i must not depend on
        the other rows.
        """

    def new_episode(self, spec: EpisodeSpec) -> Any:
        """Return the state of a fresh episode (generators, histories); None where there is none."""
        return None

    def read_alike(self, tasks: Iterable[Task]) -> tuple[str, str] | None:
        """Return the texts of two tasks that differ and that the policy reads as one; else None."""
        return None

    def end_episode(self, state: Any) -> None:  # noqa: B027  most have nothing to let go of
        """Let go of what ``state`` holds: its episode has ended, or broke and is begun anew."""

    def warm_up(self, features: Mapping[str, Feature], most: int) -> Iterator[None]:
        """Prepare for batches of up to ``most`` queries, a piece of the work at a time.

        It runs while the simulators start, and is left where it is when the first of them asks.
        """
        return iter(())

    def close(self) -> None:  # noqa: B027  most have nothing to let go of
        """Let go of everything: nothing will be asked any more.

        One that sits in a worker goes with the worker's process, without a call.
        """

    def protocol(self) -> dict[str, Any]:
        """Return what, beside its config's fields, defines an episode, as JSON values.

        Such as hashes of the files it was read from. A policy that resolves its config further says
        the whole of it under ``config``.
        """
        return {}


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
    look: Callable[[Any], None] | None = None
    """Refuses a config that names files which are not there: at once, before anything is begun."""
    pinned: Callable[[Any], Any] | None = None
    """Returns a config that names the same files for good, where links may move: called once."""
    made_for: Callable[[Any], Interface] | None = None
    """Says what a config's policy looks at and does, where its own files tell."""
    read_from: Callable[[Any], Path] | None = None
    """Returns the folder here that a config with a ``path`` is read from: another machine that has
    none is sent it."""
