"""Interface of a policy: observations of a batch of episodes in, one action chunk for each out.

PolicyConfig   the flags of a policy type
PolicyPlugin   how a type is registered: its config class and a function that makes the policy
PolicySpec     what the engine must know of a policy: inputs, chunk length, placement
Policy         the policy itself: ``act`` on a ``Batch`` of ``Query`` objects
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from proctor.features import Array, Feature, Interface
from proctor.fingerprint import PRESENTATION
from proctor.settings import declared, setting
from proctor.types import EpisodeSpec, Task


def flag(
    default: Any,
    help_text: str,
    default_help: str = "",
    marks: Mapping[Any, Any] = MappingProxyType({}),
) -> Any:
    """Declare a field of a config that is a flag.

    ``default_help`` says what the default means, and ``marks`` is further metadata.
    """
    return declared(default, {"help": help_text, "default_help": default_help, **marks})


@dataclass
class PolicyConfig:
    """Flags of every policy; a policy type's own config inherits from this class."""

    help_group: ClassVar[str] = "Policy"

    type: str = setting("", "policy type: a built-in name or package.module:NAME")
    pad_to: int | None = field(default=None, metadata={"hidden": True} | PRESENTATION)
    """Fixed batch size, so that results do not depend on the load. Not a flag: a run with
    --eval.strict sets it in a copy of the config."""
    latency_steps: int | None = field(default=None, metadata={"hidden": True})
    """Steps that the simulation continues during inference; set by --eval.latency_steps."""

    @property
    def replan_steps(self) -> int | None:
        """Actions executed before the next inference; None: known once the policy is made."""
        return None

    @property
    def is_stateful(self) -> bool:
        """Whether a reply depends on the previous reply of the episode."""
        return False


class Placement(Enum):
    """Where ``act`` runs: once in the engine for all episodes, or inside each worker process.

    A scripted policy is cheaper than a message to the engine, so it runs in the worker.
    """

    ENGINE = "engine"
    WORKER = "worker"


@dataclass(frozen=True)
class Query:
    """One episode that needs actions: its spec, its step, and the policy's state for it."""

    spec: EpisodeSpec
    step: int
    state: Any


@dataclass(frozen=True)
class Batch:
    """Queries that the policy answers in one call.

    ``observations[key]`` has shape [B, n_obs_steps, ...], oldest first. At the start of an episode
    the first observation is repeated.
    """

    queries: list[Query]
    observations: dict[str, Array]


@dataclass(frozen=True)
class PolicySpec:
    """Properties of a policy that evaluation, training and serving need."""

    name: str
    inputs: tuple[str, ...] = ()
    n_obs_steps: int = 1
    n_action_steps: int | None = 1
    """Length of its chunks; None: each chunk has its own length, as from a remote server."""
    placement: Placement = Placement.ENGINE
    language_conditioned: bool = False
    """Whether it needs an instruction for every task."""
    tasks_with_instruction: tuple[str, ...] = ()
    """Names of the tasks whose instruction a flag overrides."""
    device_type: str | None = None
    """Where its network runs, "cpu" or an accelerator; sets the default number of simulators.
    None: it has no network."""
    max_rows: int | None = None
    """Largest batch, where every batch is padded to this size: one row more would cost a second
    pass. None: no limit."""
    bit_exact: bool = True
    """Whether a row's bits do not depend on the rest of the batch; if they do, an audit compares
    outcomes and returns instead of digests."""
    remembers: bool = True
    """Whether its actions depend on the state of ``new_episode``: such an episode cannot move to
    another server of the same policy. Ignored if ``new_episode`` returns None."""
    steps_per_query: int | None = None
    """Steps between two queries of an episode that its states assume; None: any number."""
    in_flight: int = 1
    """Concurrent calls of ``act``, each from its own thread. More than one suits policies that wait
    for a server; each call then has one query."""
    follows_expert: bool = False
    """Whether every action is that of the benchmark's expert, unchanged. A simulator in another
    process then need not wait for each action."""
    notes: tuple[str, ...] = ()
    """Lines that are shown to the user once."""
    warnings: tuple[str, ...] = ()
    """Warnings that change what a result means: shown before a run, with it and on its page."""


class Policy(ABC):
    """A policy holds weights and no episode; the state of an episode is in ``Query.state``.

    One thread calls it, one call at a time. With ``spec.in_flight`` above 1, that many threads
    call it concurrently, and each calls ``close``.
    """

    spec: PolicySpec

    @abstractmethod
    def act(self, batch: Batch) -> Array | Sequence[Array]:
        """Return actions [B, n_action_steps, action size], row i for query i.

        If ``spec.n_action_steps`` is None: a list of B arrays [T, action size], T at least 1.
        It may change the states in the queries and must keep nothing else. Row i must not depend
        on the other rows.
        """

    def new_episode(self, spec: EpisodeSpec) -> Any:
        """Return the state of a new episode (generators, histories); None: stateless."""
        return None

    def indistinguishable_tasks(self, tasks: Iterable[Task]) -> tuple[str, str] | None:
        """Return two different instructions that the policy encodes identically; else None."""
        return None

    def end_episode(self, state: Any) -> None:  # noqa: B027  most hold no resources
        """Release the resources of ``state``: its episode ended, or failed and is retried."""

    def warm_up(self, features: Mapping[str, Feature], most: int) -> Iterator[None]:
        """Prepare for batches of up to ``most`` queries; each step of the iterator does a part.

        It runs while the simulators start, and stops when the first query arrives.
        """
        return iter(())

    def close(self) -> None:  # noqa: B027  most hold no resources
        """Release all resources; no call follows.

        A policy in a worker process ends with the process and is not closed.
        """

    def protocol(self) -> dict[str, Any]:
        """Return what defines an episode besides the config's fields, as JSON values.

        An example are hashes of the checkpoint's files. A policy that resolves its config returns
        the resolved config under ``config``.
        """
        return {}


@dataclass(frozen=True)
class PolicyPlugin:
    """A registered policy type: its config class and how to make the policy."""

    config: type[PolicyConfig]
    make: Callable[[Any, Interface], Policy]
    summary: str
    open_field: str | None = None
    """Config field that collects unknown --policy flags; None: they are refused."""
    is_trained: bool = True
    """Whether data made it; False for scripts, whose evaluations no training data contaminate."""
    has_network: bool = False
    """Whether it imports torch, which takes seconds, and usually needs images."""
    image_inputs: Callable[[Any], tuple[str, ...]] | None = None
    """Returns the keys of the images that a checkpoint takes; reads its files without torch."""
    check_config: Callable[[Any], None] | None = None
    """Refuses a config whose files are missing, before anything starts."""
    pin: Callable[[Any], Any] | None = None
    """Returns the config with symbolic links resolved, since links may change; called once."""
    trained_interface: Callable[[Any], Interface] | None = None
    """Returns the interface that a checkpoint was trained for, read from its files."""
    local_checkpoint: Callable[[Any], Path] | None = None
    """Returns the local checkpoint folder of a config; it is sent to nodes that lack it."""
