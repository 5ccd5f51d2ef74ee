"""Messages between engine and workers. Observations travel through shared memory instead.

The two messages of every decision are tuples, which Python makes faster than frozen dataclasses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Union

from proctor.features import Array
from proctor.types import EpisodeResult, EpisodeSpec, Start

if TYPE_CHECKING:  # need more packages than another interpreter's worker has
    from proctor.callbacks.staged_episodes import RecordingOptions
    from proctor.callbacks.video import VideoOptions


@dataclass(frozen=True)
class StartEpisode:
    """Engine to worker: start this episode, with video or recording if options are given."""

    spec: EpisodeSpec
    camera: VideoOptions | None = None
    actions: Array | None = None
    """All actions of the episode if it is replayed; the policy is then not called."""
    recording: RecordingOptions | None = None
    reports_start: bool = False
    """Whether the worker sends ``EpisodeStarted`` too. Retries do: their worker may die again."""


class ExecuteChunk(NamedTuple):
    """Engine to worker: execute these actions."""

    actions: Array  # [n_action_steps, action size]


@dataclass(frozen=True)
class CloseSim:
    """Engine to worker: close your simulator, there is no episode for you."""


Order = Union[StartEpisode, ExecuteChunk, CloseSim]


@dataclass(frozen=True)
class WorkerReady:
    """Worker to engine: I am started and accept orders."""


@dataclass(frozen=True)
class EpisodeStarted:
    """Worker to engine: the episode has begun from this start."""

    start: Start


class NeedsActions(NamedTuple):
    """Worker to engine: my slot holds the observation after ``step`` steps."""

    step: int


@dataclass(frozen=True)
class EpisodeEnded:
    """Worker to engine: the episode has ended with this result."""

    result: EpisodeResult


@dataclass(frozen=True)
class SimClosed:
    """Worker to engine: my simulator is closed."""


@dataclass(frozen=True)
class WorkerFailed:
    """Worker or pool to engine: this worker has failed; ``reason`` is a traceback."""

    reason: str
    at_start: bool = False
    cause: str | None = None
    """Equal for repetitions of one failure; None for a fault of the machine."""
    so_far: EpisodeResult | None = None
    """The episode's result up to the failure, if the worker could still report it."""


@dataclass(frozen=True)
class PolicyFailed:
    """Worker to engine: the policy raised in my process, or returned invalid actions."""

    message: str
    cause: str | None
    """Traceback of the policy's exception; None if the message says everything."""
    code: str
    """Code of the error."""


@dataclass(frozen=True)
class PluginFailed:
    """Worker to engine: the benchmark plug-in breaks its contract; a retry is useless."""

    message: str
    code: str


@dataclass(frozen=True)
class RecordingFailed:
    """Worker to engine: the recorded episode cannot be written."""

    message: str
    code: str


Failed = Union[PolicyFailed, PluginFailed, RecordingFailed]
Report = Union[
    WorkerReady, EpisodeStarted, NeedsActions, EpisodeEnded, SimClosed, WorkerFailed, Failed
]
