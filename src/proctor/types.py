"""Records that all of Proctor uses: tasks, episode specs, outcomes and results.

Each is small, picklable, and frozen where possible. This module imports nothing else of Proctor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Tuple

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt


@dataclass(frozen=True)
class Perturbation:
    """How a task differs from its clean counterpart, for paired robustness statistics.

    The clean counterpart of an episode is the one of task ``(clean_suite, clean_task_id)`` with the
    same seed and init state.
    """

    dimension: str
    """What is changed, such as "camera" or "language"."""
    level: int | None
    """Strength, 1 is the weakest; None if the dimension has no levels."""
    clean_suite: str
    clean_task_id: int

    @property
    def clean_key(self) -> tuple[str, int]:
        """Identifies the clean task within a run."""
        return (self.clean_suite, self.clean_task_id)


@dataclass(frozen=True)
class Task:
    """One task: its suite, name, language instruction, step limit and control frequency."""

    suite: str
    task_id: int
    name: str
    instruction: str
    max_steps: int
    fps: int
    perturbation: Perturbation | None = None
    """None: a clean task."""

    @property
    def key(self) -> tuple[str, int]:
        """Identifies the task within a run."""
        return (self.suite, self.task_id)


DEFAULT_EPISODES = 50
"""Episodes per task where neither the user nor the benchmark's protocol says how many."""

MAX_EPISODES = 200_000
"""Largest number of episodes in a run: about 35 MB of specs, and weeks of simulation."""

EpisodeKey: TypeAlias = Tuple[str, int, int]
"""(suite, task_id, episode index): identifies an episode within a run."""


def default_world(seed: int, init_state: int | None) -> str:
    """Return the world's name if the benchmark gives none: from its init state, else its seed.

    Episodes with the same init state and other seeds count as variations of one world.
    """
    return f"seed {seed}" if init_state is None else f"init {init_state}"


@dataclass(frozen=True)
class EpisodeSpec:
    """Everything that determines the initial state of one episode."""

    task: Task
    index: int
    seed: int
    init_state: int | None = None
    world: str = ""
    """Identifies the initial state within its task. Episodes that share it are not independent, so
    the statistics give them less weight. Set by the benchmark; default: ``default_world``."""

    def __post_init__(self) -> None:
        if not self.world:
            object.__setattr__(self, "world", default_world(self.seed, self.init_state))

    @property
    def key(self) -> EpisodeKey:
        """Identifies the episode within a run."""
        return (self.task.suite, self.task.task_id, self.index)

    @property
    def started(self) -> EpisodeStart:
        """Where the episode will start, as planned."""
        return planned_start(self, None)

    def __str__(self) -> str:
        return f"{self.task.name} episode {self.index} (seed {self.seed})"


MAX_START_VALUES = 64
"""Largest number of values of a measured start."""


@dataclass(frozen=True)
class Start:
    """The state from which an episode started, as measured after the reset.

    Episodes of a task with equal starts are one independent unit (``stats/independent_units``).
    """

    names: tuple[str, ...]
    """What each value is ("block x"). Empty if the environment shows no state; then ``digest`` is
    a hash of the first observation."""
    values: tuple[float, ...]
    """Poses of objects, goal and joints: at most ``MAX_START_VALUES`` numbers, rounded to a tenth
    of the tolerance."""
    tolerance: float
    """Two starts are equal if no value differs by more than this."""
    digest: str
    """Hash of names and values, or of the first observation."""


class EpisodeStart(NamedTuple):
    """Where an episode starts: as the plan names it, and as measured."""

    clean_task: tuple[str, int]
    """(suite, task id) of the episode's task; of a perturbed episode, of its clean task."""
    perturbed: bool
    planned: str
    """The start's name within its task (``EpisodeSpec.world``)."""
    seed: int
    init_state: int | None
    measured: Start | None

    @property
    def unnamed(self) -> str:
        """The planned start's name if the benchmark gives none."""
        return default_world(self.seed, self.init_state)


def planned_start(spec: EpisodeSpec, measured: Start | None) -> EpisodeStart:
    """Return the start of a spec's episode, with what was measured."""
    change = spec.task.perturbation
    task = spec.task.key if change is None else change.clean_key
    return EpisodeStart(task, change is not None, spec.world, spec.seed, spec.init_state, measured)


class Outcome(Enum):
    """How an episode ended. ``ERROR`` is a failure of the system, not of the policy."""

    SUCCESS = "success"
    FAILURE = "failure"
    DIVERGED = "diverged"
    """The policy broke the simulator: a retry had the same error at the same step."""
    ERROR = "error"
    ENDED = "ended"
    """Complete, but without a success criterion (``--env.success=none``)."""

    @property
    def counts(self) -> bool:
        """Whether the episode counts in the success rate."""
        return self is not Outcome.ERROR

    @property
    def failed(self) -> bool:
        """Whether the policy did not solve the task."""
        return self in (Outcome.FAILURE, Outcome.DIVERGED)

    @property
    def is_complete(self) -> bool:
        """Whether the episode ran to its end, so that it can be replayed."""
        return self in (Outcome.SUCCESS, Outcome.FAILURE, Outcome.ENDED)


@dataclass(frozen=True)
class StepResult:
    """The result of one simulator step."""

    reward: float
    success: bool | None
    """None if the environment has no success criterion."""
    terminated: bool
    scores: Mapping[str, float] | None = None
    """Other measures of this step, by name. The journal keeps each one's maximum, and the minimum
    of a distance (``keeps_minimum``)."""


MAX_REWARD = "max_reward"
SUBGOALS = "subgoals"
"""Score: the share of the task's subgoals that hold at a step, 0 to 1."""
CLOSEST = "closest_m"
"""Score: how near the task's object is to its target at a step, in metres."""


def keeps_minimum(score: str) -> bool:
    """Whether an episode's score is the minimum over its steps: its name begins with "closest"."""
    return score.startswith("closest")


@dataclass(frozen=True)
class Score:
    """A score that a benchmark is usually reported with, beside the success rate.

    Tables and pages show its mean over episodes.
    """

    name: str
    """``MAX_REWARD``, or a name in ``StepResult.scores``: the best value of an episode."""
    label: str
    """Column header, such as "max reward"."""


@dataclass
class Timings:
    """Seconds of one episode, by the worker's activity."""

    open_s: float = 0.0
    sim_s: float = 0.0
    render_s: float = 0.0
    wait_s: float = 0.0


@dataclass(frozen=True)
class StateTrace:
    """Where things were during an episode: named coordinates at sampled steps.

    It is for reports only, and no part of the digest.
    """

    names: tuple[str, ...]
    steps: npt.NDArray[Any]  # int32 [samples]; the first is 0, the last is the end
    states: npt.NDArray[Any]  # float32 [samples, coordinates]; NaN: not sampled
    best_reward: npt.NDArray[Any]  # float32 [samples]: the largest reward so far; NaN at step 0


@dataclass
class EpisodeResult:
    """One finished episode, as the journal stores it.

    ``digest`` is a hash of the initial state, every reward, the success flags and the final state.
    Two episodes with the same digest are the same episode.
    """

    spec: EpisodeSpec
    outcome: Outcome
    success_at_end: bool | None = False
    steps: int = 0
    steps_to_success: int | None = None
    """Number of steps until the first success; an environment may continue after it."""
    sum_reward: float = 0.0
    max_reward: float | None = None
    scores: dict[str, float] | None = None
    """Best value of each of the steps' ``scores``; None if the benchmark has none."""
    clipped_steps: int = 0
    renders: int = 0
    digest: str | None = None
    start: Start | None = None
    """The measured start; None if the worker died before it reported one."""
    timings: Timings = field(default_factory=Timings)
    started_at: float = 0.0
    ended_at: float = 0.0
    worker: int = 0
    attempts: int = 1
    error: str | None = None
    measured: bool = True
    """False if a worker died and only the number of steps is known."""
    actions: npt.NDArray[Any] | None = field(default=None, compare=False, repr=False)
    """All executed actions, [steps, action size]; too large for the journal."""

    rewards: npt.NDArray[Any] | None = field(default=None, compare=False, repr=False)
    """The reward of every step, float32 [steps]."""
    states: StateTrace | None = field(default=None, compare=False, repr=False)
    final_images: dict[str, npt.NDArray[Any]] | None = field(
        default=None, compare=False, repr=False
    )
    """The images of the last state that the judge needs; dropped once it has seen them."""
    judge_probability: float | None = None
    """Probability of success by the judge (``--eval.judge``); None: not judged."""
    judge_success: bool | None = None
    """The judge's verdict."""

    @property
    def key(self) -> EpisodeKey:
        """Identifies the episode within a run."""
        return self.spec.key

    @property
    def started(self) -> EpisodeStart:
        """Where the episode started."""
        return planned_start(self.spec, self.start)

    @property
    def success_once(self) -> bool | None:
        """Whether the task was solved at any step; None without a success criterion."""
        return None if self.outcome is Outcome.ENDED else self.outcome is Outcome.SUCCESS
