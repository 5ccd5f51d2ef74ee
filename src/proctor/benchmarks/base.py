"""What a benchmark is: it lists tasks, turns them into specs and makes simulators in workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

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
from proctor.fingerprint import NAME_LIST, PRESENTATION
from proctor.lerobot_flags import LerobotFlag
from proctor.types import EpisodeSpec, StepResult, Task


@dataclass
class BenchmarkConfig:
    """Flags every benchmark has. A benchmark's own config inherits from this one."""

    type: str = field(default="", metadata={"help": "which benchmark"})
    task: str = field(
        default="",
        metadata={"help": "tasks or groups of tasks, comma-separated"} | PRESENTATION | NAME_LIST,
    )
    task_ids: list[int] | None = field(
        default=None,
        metadata={"help": "only these task ids of each group, as [0,3]"} | PRESENTATION,
    )
    max_parallel_tasks: int = field(
        default=0,
        metadata={"help": "most different tasks with live simulators (0: no bound)"} | PRESENTATION,
    )


class Sim(Protocol):
    """One live simulator of one task. Stepping never renders; observing does."""

    def reset(self, spec: EpisodeSpec) -> None:
        """Put the world into the state that ``spec`` determines, whatever happened before."""

    def step(self, action: Array) -> StepResult:
        """Advance the world by one action, clipped where the benchmark's ``action`` says so."""

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys`` only; image keys render, others do not."""

    def physics(self) -> Array:
        """Return the numbers that define where the world is now, float64: all that moves and all
        that a reset places (MuJoCo: qpos, qvel, poses of bodies and sites)."""

    def close(self) -> None:
        """Free the simulator, its renderer and its GL context."""


def display_keys(features: Mapping[str, Feature]) -> tuple[str, ...]:
    """Return the keys that people are shown: what is made for that, else the cameras."""
    for kind in (FeatureKind.FILM, FeatureKind.VISUAL):
        keys = tuple(key for key, feature in features.items() if feature.kind is kind)
        if keys:
            return keys
    return ()


class Benchmark(Protocol):
    """A set of tasks and how to run them.

    Made from its config alone, cheaply and without a simulator; made again inside every worker.
    ``warnings``, ``notes``, ``judged`` and ``lacking`` may be left out: ``BenchmarkDefaults``.
    """

    name: str
    action: ActionSpec
    distributions: tuple[str, ...]
    """Installed distributions whose versions define the episodes ("mujoco", ...)."""
    preload: tuple[str, ...]
    """Modules that workers need and that can be imported once, before they fork: with the variables
    of ``preflight(())``, so before it is known whether and how this run renders."""
    expert_inputs: tuple[str, ...]
    """The observation keys an expert looks at; empty when there is no expert."""
    warnings: tuple[str, ...]
    """Lines that a user must see before a run, for they change what its results mean."""
    notes: tuple[str, ...]
    """Lines that a user should see once before a run."""
    judged: bool
    """Whether its steps say if the task is solved; False: their ``success`` is None."""

    def tasks(self) -> list[Task]:
        """List the configured tasks. Creates no simulator and no GL context."""

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        """Return episode ``index`` of ``task`` in a run seeded with ``seed``."""

    def features(self) -> dict[str, Feature]:
        """Return what can be observed, key by key."""

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode, as JSON values (seed rule, horizon ...)."""

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check that ``keys`` can be observed on this machine; return variables workers need set.

        Raises:
            MissingExtra: the simulator is not installed.
            NoGraphics: ``keys`` holds images and nothing here can render.
        """

    def make_sim(self, task: Task) -> Sim:
        """Build the simulator of ``task``. Called in a worker, on its first episode of the task."""

    def expert(self, task: Task) -> Expert:
        """Return the scripted policy of ``task``.

        Raises:
            UsageError: there is none.
        """

    def lacking(self) -> str | None:
        """Return what ``preflight`` would download first and by which command; None: nothing."""


class BenchmarkDefaults:
    """What a benchmark that says nothing of it is taken to say."""

    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    judged: bool = True

    def lacking(self) -> str | None:
        """Need no download."""
        return None


Made = TypeVar("Made", bound=Benchmark)


def with_defaults(benchmark: Made) -> Made:
    """Return ``benchmark``, which now has the defaults of attributes that it left out."""
    defaults = BenchmarkDefaults()
    for name in (*BenchmarkDefaults.__annotations__, "lacking"):
        if not hasattr(benchmark, name):
            setattr(benchmark, name, getattr(defaults, name))
    return benchmark


SEED_RULE = "run seed + episode index, the same for every task"
"""What ``ListedTasks`` does, for the protocol."""


class ListedTasks(BenchmarkDefaults):
    """What most benchmarks share: tasks that are listed once, and the plainest rule for seeds."""

    _tasks: Sequence[Task]

    def tasks(self) -> list[Task]:
        """List the configured tasks."""
        return list(self._tasks)

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        """Return episode ``index``: its seed is the run's seed plus the index."""
        return EpisodeSpec(task=task, index=index, seed=seed + index)


def interface_of(benchmark: Benchmark) -> Interface:
    """Return what ``benchmark`` offers a policy. Creates no simulator."""
    tasks = tuple(benchmark.tasks())
    rates = {task.fps for task in tasks}
    scripts = ScriptedExperts(benchmark.expert_inputs, tasks, benchmark.expert)
    return Interface(
        name=benchmark.name,
        features=benchmark.features(),
        action=benchmark.action,
        fps=rates.pop() if len(rates) == 1 else None,
        scripts=scripts if benchmark.expert_inputs else None,
    )


@dataclass(frozen=True)
class BenchmarkPlugin:
    """How a benchmark is found: its config class and how to make it from one."""

    config: type[BenchmarkConfig]
    make: Callable[..., Benchmark]
    """From a config and, where there is ``probe``, what that gave."""
    summary: str
    lerobot_flags: Mapping[str, LerobotFlag] = field(default_factory=dict)
    """Flags of LeRobot's for this benchmark that are none of its config's, without the section."""
    groups: tuple[str, ...] = ()
    """What ``--env.task`` takes that names several tasks, such that every task is in one."""
    probe: Callable[[Any], Any] | None = None
    """Finds out what making takes time for (a download, opening an environment): once, in the
    parent; the record is handed to every worker."""

    def maker(self, config: Any) -> Callable[[], Benchmark]:
        """Return what makes the benchmark of ``config``, here and in workers."""
        learnt = () if self.probe is None else (self.probe(config),)
        return BenchmarkMaker(self.make, (config, *learnt))


@dataclass(frozen=True)
class BenchmarkMaker:
    """Makes one benchmark, here and in workers; picklable."""

    func: Callable[..., Benchmark]
    args: tuple[Any, ...]

    def __call__(self) -> Benchmark:
        """Make it, complete."""
        return with_defaults(self.func(*self.args))
