"""The small messages between engine and workers. Observations never travel in them."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.callbacks.staged_episodes import RecordingOptions
from proctor.callbacks.video import VideoOptions
from proctor.features import Array
from proctor.types import EpisodeResult, EpisodeSpec


@dataclass(frozen=True)
class StartEpisode:
    """Engine: start this episode; film it if there is a camera, record it if that is said."""

    spec: EpisodeSpec
    camera: VideoOptions | None = None
    actions: Array | None = None
    """All that it consists of, where it was played before: then the policy is not asked."""
    recording: RecordingOptions | None = None


@dataclass(frozen=True)
class ExecuteChunk:
    """Engine: execute these actions."""

    actions: Array  # [n_action_steps, action size]


@dataclass(frozen=True)
class CloseSim:
    """Engine: free your simulator, you have nothing to do."""


Order = StartEpisode | ExecuteChunk | CloseSim


@dataclass(frozen=True)
class WorkerReady:
    """Worker: I am up and take orders."""


@dataclass(frozen=True)
class NeedsActions:
    """Worker: my slot holds the observation after ``step`` steps."""

    step: int


@dataclass(frozen=True)
class EpisodeEnded:
    """Worker: the episode is over, this is its result."""

    result: EpisodeResult


@dataclass(frozen=True)
class SimClosed:
    """Worker: my simulator is gone."""


@dataclass(frozen=True)
class WorkerFailed:
    """Worker, or whoever watches it: this worker is of no more use, and why (a traceback)."""

    reason: str
    at_start: bool = False
    cause: str | None = None
    """What is the same when it breaks so again; None for a fault of the machine."""
    so_far: EpisodeResult | None = None
    """The episode up to there, as far as the worker could still tell."""


@dataclass(frozen=True)
class PolicyFailed:
    """Worker: the policy returned what cannot be played, or raised beside my simulator."""

    message: str
    cause: str | None
    """The traceback of what it raised; None where the message is ours, and says it all."""


@dataclass(frozen=True)
class PluginFailed:
    """Worker: what makes simulators made none; trying again is of no use."""

    message: str


@dataclass(frozen=True)
class RecordingFailed:
    """Worker: what is recorded cannot be written, which is nobody's fault who plays."""

    message: str


Failed = PolicyFailed | PluginFailed | RecordingFailed
Report = WorkerReady | NeedsActions | EpisodeEnded | SimClosed | WorkerFailed | Failed
