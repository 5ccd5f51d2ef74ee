"""What travels between a head and the engines elsewhere: specs there, results and files back.

Pictures never do. A lot is answered by news whenever there is something to tell, not lot by lot.
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
    """How the episodes of a phase are played, wherever."""

    environment: Mapping[str, str]
    """Variables that workers need set."""
    camera: VideoOptions | None = None
    recording: RecordingOptions | None = None


@dataclass(frozen=True)
class EpisodeBatch:
    """Head: play these too."""

    specs: tuple[EpisodeSpec, ...]
    way: RolloutOptions
    actions: Mapping[EpisodeKey, Array] = field(default_factory=dict)
    """Of those that are played again, without the policy."""


@dataclass(frozen=True)
class EpisodeDelivery:
    """An episode that has ended, and the files it left, by their place in the run folder."""

    result: EpisodeResult
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class NodeEffort:
    """What engines have done."""

    steps: int = 0
    batches: int = 0
    batched_requests: int = 0
    infer_s: float = 0.0
    calls: Counter[int] = field(default_factory=Counter)
    """How many calls of the policy took how long, by ``latency.size_of``."""

    @classmethod
    def of(cls, progress: RunProgress) -> NodeEffort:
        """Return the totals of a progress report."""
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
        """Return how a run goes that began when ``before`` had been done.

        Policies that compute ``at_once``, on so many nodes, take up that much less of its time.
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
    """Why an engine plays nothing more."""

    message: str
    cause: str
    """The traceback."""
    kind: str = ""
    """The name of the error it was, of ``proctor.errors``."""
    unfit: bool = False
    """Whether it never played: other engines may be better off."""


@dataclass(frozen=True)
class NodeReport:
    """Engine: this has happened since I was asked last."""

    simulators: int = 0
    """How many play; 0: it is being opened."""
    ended: tuple[EpisodeDelivery, ...] = ()
    effort: NodeEffort = field(default_factory=NodeEffort)
    """Since it was opened."""
    log: bytes = b""
    """What simulators printed."""
    failure: NodeFailure | None = None
    wants_checkpoint: bool = False
    """Whether the folder that the policy is read from is not there."""


@dataclass(frozen=True)
class NodeLost:
    """Whoever watches over engines: this one is gone, with all it had."""

    reason: str


@dataclass(frozen=True)
class NodeJoined:
    """An engine that has been started."""

    node_id: str
    """Where; one at a time is there."""
    name: str
    """What people call it."""


class Cluster(Protocol):
    """Engines elsewhere, each known by its seat."""

    def newcomers(self, besides: Collection[str]) -> list[NodeJoined]:
        """Start an engine in every seat that has none, but ``besides``; return those that were."""

    def give(self, node_id: str, episode_batch: EpisodeBatch | None) -> None:
        """Hand an engine a lot, or nothing; its news come by ``poll``, and then it may be again."""

    def poll(self, timeout_s: float) -> list[tuple[str, NodeReport | NodeLost]]:
        """Return what engines have to tell, waiting up to ``timeout_s`` for the first."""

    def close(self) -> None:
        """End all engines."""
