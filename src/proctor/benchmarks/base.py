"""Interface of benchmarks: they list tasks, define episodes, and make simulators in workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from proctor.features import (
    ActionSpec,
    Array,
    Expert,
    Feature,
    FeatureKind,
    Interface,
    Observation,
    ScriptedExperts,
)
from proctor.fingerprint import LOCAL_PATH, NAME_LIST, PRESENTATION
from proctor.lerobot_flags import LerobotFlag
from proctor.settings import setting
from proctor.types import DEFAULT_EPISODES, EpisodeSpec, Score, StepResult, Task


@dataclass
class BenchmarkConfig:
    """Flags of every benchmark; a benchmark's own config inherits from this class."""

    n_episodes: ClassVar[int] = DEFAULT_EPISODES
    """Episodes per task if --eval.n_episodes is not given: the benchmark's published protocol."""
    help_group: ClassVar[str] = "Environment"
    help_groups: ClassVar[Mapping[str, str]] = {
        "Tasks": "task task_ids max_parallel_tasks episode_length",
        "Observations": "obs_type observation_height observation_width camera_name "
        "camera_name_mapping",
        "Interpreter": "python command",
    }

    type: str = setting("", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(
        "",
        "tasks or groups of tasks, comma-separated (see proctor list tasks)",
        PRESENTATION,
        NAME_LIST,
    )
    task_ids: list[int] | None = setting(
        None, "task ids to run, of each group, as [0,3] (default: all tasks)", PRESENTATION
    )
    max_parallel_tasks: int = setting(
        0,
        "maximum number of tasks that have simulators at the same time (default: no limit)",
        PRESENTATION,
        least=0,
    )
    python: str | None = setting(
        None,
        "interpreter (Python 3.8 or newer) or virtual environment that runs the simulators; "
        "it needs numpy and the simulator's packages (default: this interpreter)",
        PRESENTATION,
        LOCAL_PATH,
    )
    command: str | None = setting(
        None,
        "command that starts such an interpreter elsewhere, as 'docker run -i IMAGE "
        "python3'; only stdin and stdout are shared (default: no command)",
        PRESENTATION,
    )


class Sim(Protocol):
    """A live simulator of one task. ``step`` never renders; ``observe`` does."""

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the world to the start of episode ``spec``; earlier episodes have no effect."""

    def step(self, action: Array) -> StepResult:
        """Advance the world by one action, clipped if the benchmark's ``action`` says so."""

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys`` only; image keys render, others do not."""

    def physics(self) -> Array:
        """Return the physics state of the world, float64, for digests.

        It has everything that moves and everything that a reset places (MuJoCo: qpos, qvel, poses
        of bodies and sites).
        """

    def close(self) -> None:
        """Free the simulator, its renderer and its GL context."""


ROBOT = "robot"
"""First word of the names of the robot's own coordinates."""


@runtime_checkable
class LocatedSim(Protocol):
    """An optional method of simulators: where the things of the task are.

    The report page shows success against the coordinates at the start, and groups failures by where
    they ended. Without it, the page uses the numbers of ``physics`` if they are few.
    """

    def coordinates(self) -> Mapping[str, float]:
        """Return named positions ("block x"), the most important first. Reads only.

        The robot's own begin with "robot", such as "robot hand x": a failed episode has stalled if
        no other thing moves.
        """


@runtime_checkable
class MeasuredSim(Protocol):
    """An optional method of simulators: what tells the starts of a task apart.

    Episodes of a task with equal starts count as one independent unit. Without the method, starts
    are compared by ``physics``. An attribute ``start_tolerance`` says how far the numbers of equal
    starts may be apart (default: 1e-6); different starts are at least ten times as far apart.
    """

    def start_state(self) -> Mapping[str, float]:
        """Return at most 64 named numbers of the world after a reset. Reads only.

        They are the poses of objects, the goal and the robot's joints: everything that differs
        between starts. Every episode of a task has the same names. Empty: ``physics`` is compared.
        """


@dataclass(frozen=True)
class ComingSteps:
    """The next steps of an episode, and what is read after them."""

    actions: Array  # [n, action size]
    keys: tuple[str, ...]
    """Observed after each step from number ``first_observed`` on, counted from 0."""
    first_observed: int
    located: tuple[int, ...]
    """Steps after which the coordinates are read."""
    count: Callable[[int], None]
    """Adds to the number of steps that have begun. ``step`` is called after its step is counted; a
    simulator that is ahead counts the difference while the caller waits for it."""
    expert_steps: int = 0
    """Further steps. The action of each is the expert's, as observed after the step before."""


@runtime_checkable
class AnnouncedSim(Protocol):
    """Optional methods of simulators: the worker announces resets and steps before they come.

    A simulator in another process executes and observes it in one go.
    """

    def announce_reset(self, keys: Sequence[str]) -> None:
        """Announce that ``keys`` are observed after the next reset."""

    def announce(self, coming: ComingSteps) -> None:
        """Announce the next steps, until the episode ends. Nothing else is called in between."""


class PendingImage(Protocol):
    """An image that was requested."""

    def __call__(self) -> Array:
        """Wait for the image, uint8 [H, W, 3], and return it."""


@runtime_checkable
class PipelinedSim(Protocol):
    """An optional method of simulators: images are drawn while the world moves on."""

    def request_images(self, keys: Sequence[str]) -> Mapping[str, PendingImage] | None:
        """Request images of the current state; None: ``observe`` renders them at once."""


@runtime_checkable
class PenalisedSim(Protocol):
    """An optional method of simulators: a penalty for the discrete part of an action."""

    def discrete_penalty(self) -> float:
        """Return the penalty of the last step, 0 or negative; 0 before the first step."""


def xyz(name: str, position: Array) -> dict[str, float]:
    """Return a position's coordinates by name: "NAME x", "NAME y", "NAME z"."""
    return {f"{name} {axis}": float(value) for axis, value in zip("xyz", position)}


@dataclass(frozen=True)
class RobotControl:
    """How actions move the robot, and the units of noise, for perturbations (``--perturb``)."""

    action_noise: float | tuple[float, ...]
    """Unit of action noise, in units of the action: one number, or one for each dimension."""
    state_noise: Mapping[str, float | tuple[float, ...]]
    """Unit of state noise by observation key, in units of that observation."""
    hold: tuple[float, ...] | None = None
    """The action that keeps the robot still. None: actions are absolute, and the robot's state
    (``STATE``) is the action that holds it."""
    hand_step_m: float | None = None
    """Motion of the hand in metres if one of the first three numbers of an action is 1."""
    joints: tuple[int, ...] = ()
    """Dimensions of an absolute action that are arm joints."""
    degree: float = 1.0
    """One degree of a joint, in units of the action."""


def display_keys(features: Mapping[str, Feature]) -> tuple[str, ...]:
    """Return the image keys to show in videos: the video image if there is one, else cameras."""
    for kind in (FeatureKind.FILM, FeatureKind.VISUAL):
        keys = tuple(key for key, feature in features.items() if feature.kind is kind)
        if keys:
            return keys
    return ()


class SimFactory(Protocol):
    """The part of a benchmark that every worker uses."""

    def features(self) -> dict[str, Feature]:
        """Return the observable features by key."""

    def make_sim(self, task: Task) -> Sim:
        """Make the simulator of ``task``; called in a worker, at its first episode of the task."""

    def sim_task(self, task: Task) -> Task:
        """Return the task whose simulators run ``task`` too; tasks may share them."""


@dataclass(frozen=True)
class WorkerInterpreter:
    """Another interpreter that worker processes run in."""

    python: str
    """Its path."""
    make_sims: Callable[[], SimFactory] | None = None
    """Makes what a worker uses there, if that Python is too old for benchmarks and policies of
    Proctor; None: the worker makes the benchmark itself."""


class Benchmark(SimFactory, Protocol):
    """A set of tasks and how to run them.

    It is made from its config alone, cheaply and without a simulator, and again in every worker.
    ``warnings``, ``notes``, ``judged``, ``scores``, ``robot_control``, ``editable_scenes``,
    ``starts_of``, ``places_scenes``, ``worker_interpreter``, ``lacking`` and ``sim_task`` have
    defaults: ``BenchmarkDefaults``.
    """

    name: str
    action: ActionSpec
    distributions: tuple[str, ...]
    """Installed distributions whose versions define the episodes ("mujoco", ...)."""
    preload: tuple[str, ...]
    """Modules that the worker processes' parent imports once, before it forks.

    The environment variables of ``preflight(())`` are set then: it is not yet known whether and how
    the run renders.
    """
    expert_inputs: tuple[str, ...]
    """Observation keys that the expert takes; empty if there is no expert."""
    warnings: tuple[str, ...]
    """Warnings to print before a run: they change what its results mean."""
    notes: tuple[str, ...]
    """Notes to print once before a run."""
    judged: bool
    """Whether steps report success; False: ``StepResult.success`` is None."""
    scores: tuple[Score, ...]
    """Scores that tables and pages show beside success rate and reward."""
    robot_control: RobotControl | None
    """How actions move the robot; None: perturbations of actions and states are refused."""
    editable_scenes: bool
    """Whether its simulators are ``EditableSim``: MuJoCo worlds that Proctor renders."""
    starts_of: str
    """Name of the benchmark whose starts these are, if several share them; empty: its own."""
    places_scenes: bool
    """Whether simulators place the scene at random, by the seed, if a spec has no init state."""
    worker_interpreter: WorkerInterpreter | None
    """The interpreter that worker processes run in; None: Proctor's own."""

    def tasks(self) -> list[Task]:
        """List the configured tasks. Creates no simulator and no GL context."""

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        """Return episode ``index`` of ``task`` in a run seeded with ``seed``."""

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode, as JSON values (seed rule, horizon ...)."""

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check that ``keys`` can be observed here; return environment variables for workers.

        Raises:
            MissingExtra: the simulator is not installed.
            NoGraphics: ``keys`` has images, and no GL backend works.
        """

    def expert(self, task: Task) -> Expert:
        """Return the scripted expert of ``task``.

        Raises:
            UsageError: the task has no expert.
        """

    def lacking(self) -> str | None:
        """Return what ``preflight`` would download, and the command for it; None: nothing."""


class BenchmarkDefaults:
    """Defaults of a benchmark's optional attributes."""

    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    judged: bool = True
    scores: tuple[Score, ...] = ()
    robot_control: RobotControl | None = None
    editable_scenes: bool = False
    starts_of: str = ""
    places_scenes: bool = False
    worker_interpreter: WorkerInterpreter | None = None

    def sim_task(self, task: Task) -> Task:
        """Return ``task``: every task has simulators of its own."""
        return task

    def lacking(self) -> str | None:
        """Return None: no download is needed."""
        return None


Made = TypeVar("Made", bound=Benchmark)


def with_defaults(benchmark: Made) -> Made:
    """Set the defaults of optional attributes that ``benchmark`` does not have; return it."""
    defaults = BenchmarkDefaults()
    for name in (*BenchmarkDefaults.__annotations__, "lacking", "sim_task"):
        if not hasattr(benchmark, name):
            setattr(benchmark, name, getattr(defaults, name))
    return benchmark


SEED_RULE = "run seed + episode index, the same for every task"
"""Seed rule of ``ListedTasks``, as written in protocols."""


class ListedTasks(BenchmarkDefaults):
    """Base class for benchmarks with a fixed list of tasks and the usual seed rule."""

    _tasks: Sequence[Task]

    def tasks(self) -> list[Task]:
        """List the configured tasks."""
        return list(self._tasks)

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        """Return episode ``index``; its seed is the run's seed plus the index."""
        return EpisodeSpec(task=task, index=index, seed=seed + index)


def interface_of(benchmark: Benchmark, config: BenchmarkConfig | None = None) -> Interface:
    """Return the benchmark's interface for policies. Creates no simulator.

    With its ``config``, errors name the flags that set the images' size.
    """
    tasks = tuple(benchmark.tasks())
    rates = {task.fps for task in tasks}
    scripts = ScriptedExperts(benchmark.expert_inputs, tasks, benchmark.expert)
    return Interface(
        name=benchmark.name,
        features=benchmark.features(),
        action=benchmark.action,
        fps=rates.pop() if len(rates) == 1 else None,
        scripts=scripts if benchmark.expert_inputs else None,
        image_size_flags=() if config is None else _image_size_flags(config),
    )


def _image_size_flags(config: BenchmarkConfig) -> tuple[str, ...]:
    """Return the flags of ``config`` that set the images' height and width, or one for both."""
    names = {entry.name for entry in fields(config)}
    for flags in (("observation_height", "observation_width"), ("image_size",)):
        if names.issuperset(flags):
            return tuple(f"--env.{name}" for name in flags)
    return ()


@dataclass(frozen=True)
class BenchmarkPlugin:
    """Registration of a benchmark: its config class, and how to make it from a config."""

    config: type[BenchmarkConfig]
    make: Callable[..., Benchmark]
    """Called with a config and, if ``probe`` is set, with its result."""
    summary: str
    lerobot_flags: Mapping[str, LerobotFlag] = field(default_factory=dict)
    """LeRobot's flags for this benchmark that its config does not have, without the section."""
    groups: tuple[str, ...] = ()
    """Values of ``--env.task`` that name several tasks; together they contain every task."""
    probe: Callable[[Any], Any] | None = None
    """Does the slow part of making a benchmark (a download, opening an environment).

    It runs once, in the parent; every worker gets the result.
    """
    starts_interpreter: bool = False
    """Whether ``probe`` and ``make`` use ``--env.python`` and ``--env.command`` themselves."""

    def maker(self, config: Any) -> Callable[[], Benchmark]:
        """Return a picklable factory of the benchmark, for this process and for workers."""
        probed = () if self.probe is None else (self.probe(config),)
        return BenchmarkMaker(self.make, (config, *probed))


@dataclass(frozen=True)
class BenchmarkMaker:
    """Picklable factory of one benchmark."""

    func: Callable[..., Benchmark]
    args: tuple[Any, ...]

    def __call__(self) -> Benchmark:
        """Make the benchmark, with the defaults of optional attributes."""
        return with_defaults(self.func(*self.args))
