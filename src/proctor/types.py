"""The records that travel through Proctor: tasks, episode specs, results, feature specs.

Everything here is small, frozen where it can be, and picklable. It imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import numpy.typing as npt


@dataclass(frozen=True)
class Task:
    """One thing to do: where it belongs, its name, how it is said, how long it may take."""

    suite: str
    task_id: int
    name: str
    instruction: str
    max_steps: int
    fps: int

    @property
    def key(self) -> tuple[str, int]:
        """What identifies the task inside a run."""
        return (self.suite, self.task_id)


MAX_EPISODES = 200_000
"""Of one run: some 35 MB of specs, and weeks of simulation."""

EpisodeKey: TypeAlias = tuple[str, int, int]
"""(suite, task_id, episode index): what identifies an episode inside a run."""


WorldKey: TypeAlias = tuple[str, int, str]
"""(suite, task_id, world): what identifies a starting world inside a run."""


def default_world(seed: int, init_state: int | None) -> str:
    """Name the world of an episode whose benchmark says no more: its init state, else its seed.

    What a seed may add to an init state is taken for a variation of that world.
    """
    return f"seed {seed}" if init_state is None else f"init {init_state}"


@dataclass(frozen=True)
class EpisodeSpec:
    """Everything that determines the starting world of one episode."""

    task: Task
    index: int
    seed: int
    init_state: int | None = None
    world: str = ""
    """Identifies the starting world within its task: episodes of a task that share it start alike,
    and tell less than as many different ones. The benchmark says it; unsaid, ``default_world``."""

    def __post_init__(self) -> None:
        if not self.world:
            object.__setattr__(self, "world", default_world(self.seed, self.init_state))

    @property
    def key(self) -> EpisodeKey:
        """What identifies the episode inside a run."""
        return (self.task.suite, self.task.task_id, self.index)

    @property
    def world_key(self) -> WorldKey:
        """What identifies the starting world inside a run."""
        return (self.task.suite, self.task.task_id, self.world)

    def __str__(self) -> str:
        return f"{self.task.name} episode {self.index} (seed {self.seed})"


class Outcome(Enum):
    """How an episode ended. ``ERROR`` means the machinery broke: it says nothing of the policy."""

    SUCCESS = "success"
    FAILURE = "failure"
    DIVERGED = "diverged"
    """The policy broke the simulator: the same error at the same step of a second try."""
    ERROR = "error"
    ENDED = "ended"
    """Played to its end; nobody says whether that is a success (``--env.success=none``)."""

    @property
    def counts(self) -> bool:
        """Whether the episode is part of the rate."""
        return self is not Outcome.ERROR

    @property
    def failed(self) -> bool:
        """Whether the policy did not solve the task, for whatever reason of its own."""
        return self in (Outcome.FAILURE, Outcome.DIVERGED)

    @property
    def is_complete(self) -> bool:
        """Whether the episode was played to its end, so that there is something to play again."""
        return self in (Outcome.SUCCESS, Outcome.FAILURE, Outcome.ENDED)


@dataclass(frozen=True)
class StepResult:
    """What one simulator step gave."""

    reward: float
    success: bool | None
    """None where nobody says, at any step of any episode."""
    terminated: bool


@dataclass
class Timings:
    """Seconds of one episode, by what the worker spent them on."""

    open_s: float = 0.0
    sim_s: float = 0.0
    render_s: float = 0.0
    wait_s: float = 0.0


@dataclass
class EpisodeResult:
    """One finished episode, as it stands in the journal.

    ``digest`` is a hash over the world it started in, every reward, the success flags and the world
    it ended in: two
    episodes with one digest were, for our purposes, the same episode.
    """

    spec: EpisodeSpec
    outcome: Outcome
    success_at_end: bool | None = False
    steps: int = 0
    steps_to_success: int | None = None
    """After how many the task was first solved: an environment may go on from there."""
    sum_reward: float = 0.0
    max_reward: float | None = None
    clipped_steps: int = 0
    renders: int = 0
    digest: str | None = None
    timings: Timings = field(default_factory=Timings)
    started_at: float = 0.0
    ended_at: float = 0.0
    worker: int = 0
    attempts: int = 1
    error: str | None = None
    measured: bool = True
    """False where a dead worker took everything but the number of steps with it."""
    actions: npt.NDArray[Any] | None = field(default=None, compare=False, repr=False)
    """All that were played, [steps, action size]; too many for the journal."""

    @property
    def success_once(self) -> bool | None:
        """Whether the task was solved at any step; None where nobody says."""
        return None if self.outcome is Outcome.ENDED else self.outcome is Outcome.SUCCESS
