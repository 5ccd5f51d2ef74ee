"""Messages between the head of a cluster and its nodes: specs go out, results and files return.

Images never travel. A node reports whenever something happened, independently of the batches that
it receives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from proctor.callbacks.staged_episodes import RecordingOptions
from proctor.callbacks.video import VideoOptions
from proctor.features import Array
from proctor.runs.records import RunProgress
from proctor.types import EpisodeKey, EpisodeResult, EpisodeSpec


@dataclass(frozen=True)
class RolloutOptions:
    """How all episodes of one phase are rolled out, on any node."""

    environment: Mapping[str, str]
    """Environment variables of worker processes."""
    camera: VideoOptions | None = None
    recording: RecordingOptions | None = None


@dataclass(frozen=True)
class EpisodeBatch:
    """Head to node: run these episodes too."""

    specs: tuple[EpisodeSpec, ...]
    options: RolloutOptions
    actions: Mapping[EpisodeKey, Array] = field(default_factory=dict)
    """Recorded actions of episodes that are replayed without the policy."""


@dataclass(frozen=True)
class EpisodeDelivery:
    """A finished episode and its files, by their path in the run folder."""

    result: EpisodeResult
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class NodeEffort:
    """The work that nodes have done."""

    steps: int = 0
    batches: int = 0
    batched_requests: int = 0
    infer_s: float = 0.0
    calls: Counter[int] = field(default_factory=Counter)
    """Number of inference calls by duration, in the classes of ``latency.size_of``."""

    @classmethod
    def of(cls, progress: RunProgress) -> NodeEffort:
        """Return the work that ``pulse`` reports."""
        counted = progress.steps, progress.batches, progress.batched_requests, progress.infer_s
        return cls(*counted, Counter(progress.calls))

    def __add__(self, other: NodeEffort) -> NodeEffort:
        return NodeEffort(
            self.steps + other.steps,
            self.batches + other.batches,
            self.batched_requests + other.batched_requests,
            self.infer_s + other.infer_s,
            self.calls + other.calls,
        )

    def since(self, before: NodeEffort, elapsed_s: float, at_once: int = 1) -> RunProgress:
        """Return the progress of a run that began when ``before`` had been done.

        ``at_once`` nodes compute in parallel, so their inference takes that much less of the run's
        time.
        """
        return RunProgress(
            elapsed_s=elapsed_s,
            steps=self.steps - before.steps,
            batches=self.batches - before.batches,
            batched_requests=self.batched_requests - before.batched_requests,
            infer_s=max(0.0, self.infer_s - before.infer_s) / at_once,
            calls=dict(self.calls - before.calls),
        )


@dataclass(frozen=True)
class NodeFailure:
    """Why a node runs no more episodes."""

    message: str
    cause: str
    """The traceback."""
    kind: str = ""
    """Class name of the error, from ``proctor.errors``."""
    unfit: bool = False
    """Whether the node failed before its first episode; other nodes may still work."""
    code: str = ""
    """Code of the error."""


@dataclass(frozen=True)
class NodeReport:
    """Node to head: what happened since the last report."""

    simulators: int = 0
    """Number of simulators; 0: the node is starting."""
    ended: tuple[EpisodeDelivery, ...] = ()
    effort: NodeEffort = field(default_factory=NodeEffort)
    """Work since the node started."""
    log: bytes = b""
    """New output of the simulators."""
    failure: NodeFailure | None = None
    wants_checkpoint: bool = False
    """Whether the node lacks the policy's checkpoint folder."""


@dataclass(frozen=True)
class NodeLost:
    """The cluster lost this node with all its episodes."""

    reason: str


@dataclass(frozen=True)
class NodeJoined:
    """A node that has been started."""

    node_id: str
    """Identifies the node; the head runs at most one engine under an id."""
    name: str
    """Name for messages to the user."""


class Cluster(Protocol):
    """Nodes that run an engine each, known by their ids."""

    def start_nodes(self, exclude: Collection[str]) -> list[NodeJoined]:
        """Start an engine on every idle node that is not in ``exclude``; return the new ones."""

    def give(self, node_id: str, episode_batch: EpisodeBatch | None) -> None:
        """Send a node a batch, or None to ask for a report only; ``poll`` returns its report."""

    def poll(self, timeout_s: float) -> list[tuple[str, NodeReport | NodeLost]]:
        """Return the nodes' reports, waiting up to ``timeout_s`` seconds for the first."""

    def close(self) -> None:
        """End all nodes' engines."""
