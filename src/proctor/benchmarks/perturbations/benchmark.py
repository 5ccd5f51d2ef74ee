"""A benchmark with perturbed tasks beside its own, and the simulator that runs both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from proctor.benchmarks.base import Benchmark, LocatedSim, RobotControl, Sim
from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.mujoco.rendering import EditableSim
from proctor.benchmarks.perturbations import DEFINITIONS
from proctor.benchmarks.perturbations.base import ActivePerturbation, Dimension, PerturbedEpisode
from proctor.benchmarks.perturbations.dimensions import BY_NAME, dimensions_of
from proctor.benchmarks.starts import start_tolerance, start_values
from proctor.features import STATE, ActionSpec, Array, Expert, Feature, Observation
from proctor.types import EpisodeSpec, Perturbation, StepResult, Task


class PerturbedBenchmark:
    """Every task of a benchmark, followed by its perturbed variants.

    The clean task and all its variants share one simulator in a worker.
    """

    def __init__(
        self, benchmark: Benchmark, dimensions: Sequence[Dimension], levels: Sequence[int]
    ) -> None:
        self._clean = benchmark
        self.dimensions = tuple(dimensions)
        self._levels = tuple(sorted(set(levels)))
        self._clean_tasks = {task.key: task for task in benchmark.tasks()}
        self.name: str = benchmark.name
        self.action: ActionSpec = benchmark.action
        self.distributions: tuple[str, ...] = benchmark.distributions
        self.preload: tuple[str, ...] = benchmark.preload
        self.expert_inputs: tuple[str, ...] = benchmark.expert_inputs
        self.warnings: tuple[str, ...] = benchmark.warnings
        self.notes: tuple[str, ...] = benchmark.notes
        self.judged: bool = benchmark.judged
        self.scores = benchmark.scores
        self.robot_control: RobotControl | None = benchmark.robot_control
        self.editable_scenes: bool = benchmark.editable_scenes
        self.starts_of: str = benchmark.starts_of
        self.places_scenes: bool = benchmark.places_scenes
        interpreter = benchmark.worker_interpreter
        too_old = interpreter is not None and interpreter.make_sims is not None
        self.worker_interpreter = None if too_old else interpreter

    def tasks(self) -> list[Task]:
        """List every clean task, followed by its variants."""
        return [
            task for clean in self._clean_tasks.values() for task in (clean, *self._variants(clean))
        ]

    def _variants(self, clean: Task) -> list[Task]:
        return [
            replace(
                clean,
                suite=f"{clean.suite}@{dimension.name}-{level}",
                instruction=dimension.instruction(clean, level),
                perturbation=Perturbation(dimension.name, level, clean.suite, clean.task_id),
            )
            for dimension in self.dimensions
            for level in self._levels
        ]

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        """Return episode ``index``: seed, init state and world are those of the clean episode."""
        return replace(self._clean.spec(self.sim_task(task), index, seed), task=task)

    def features(self) -> dict[str, Feature]:
        """Return the benchmark's features."""
        return self._clean.features()

    def protocol(self) -> dict[str, Any]:
        """Return the benchmark's rules, and what every level of every dimension means."""
        control = self.robot_control
        perturbations = {
            "definitions": DEFINITIONS,
            "seed_rule": "episode's seed, dimension and level",
            "levels": {
                dimension.name: {str(level): dimension.strength(level) for level in self._levels}
                for dimension in self.dimensions
            },
            "robot_control": None if control is None else asdict(control),
        }
        return self._clean.protocol() | {"perturbations": perturbations}

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check that ``keys`` can be observed."""
        return self._clean.preflight(keys)

    def make_sim(self, task: Task) -> Sim:
        """Make the simulator of a clean task, which runs its variants too."""
        clean = self.sim_task(task)
        sim = self._clean.make_sim(clean)
        made = LocatedPerturbedSim if isinstance(sim, LocatedSim) else PerturbedSim
        return made(sim, self._clean, clean)

    def expert(self, task: Task) -> Expert:
        """Return the expert of the clean task."""
        return self._clean.expert(self.sim_task(task))

    def lacking(self) -> str | None:
        """Return what ``preflight`` would download."""
        return self._clean.lacking()

    def sim_task(self, task: Task) -> Task:
        """Return the clean task, whose simulator runs its variants too."""
        key = task.key if task.perturbation is None else task.perturbation.clean_key
        return self._clean_tasks[key]


@dataclass(frozen=True)
class PerturbedMaker:
    """Picklable factory of a perturbed benchmark, for this process and for workers."""

    make: Callable[[], Benchmark]
    names: tuple[str, ...]
    """Dimensions by name; never ``all``, whose meaning the parent has settled."""
    levels: tuple[int, ...]

    def __call__(self) -> Benchmark:
        """Make the benchmark and its variants."""
        benchmark = self.make()
        return PerturbedBenchmark(benchmark, dimensions_of(self.names, benchmark), self.levels)


class PerturbedSim:
    """A simulator whose episodes are perturbed as their tasks say; clean ones pass unchanged.

    Only actions, observations and rendered scenes are changed, never the simulator itself, so no
    episode affects a later one.
    """

    def __init__(self, sim: Sim, benchmark: Benchmark, task: Task) -> None:
        self._sim = sim
        self._task = task
        self._action, self._control = benchmark.action, benchmark.robot_control
        self._features: Mapping[str, Feature] = benchmark.features()
        self._editable = cast(EditableSim, sim) if benchmark.editable_scenes else None
        self._active = ActivePerturbation()
        self._steps = 0
        self._start: Mapping[str, float] = {}
        self.start_tolerance = start_tolerance(sim)

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the world, and begin the perturbation of the spec's task."""
        with proctor_code():
            self._use(ActivePerturbation())
        self._sim.reset(replace(spec, task=self._task))
        self._start = start_values(self._sim)
        if spec.task.perturbation is None:
            return
        hold = self._hold_action()
        with proctor_code():
            self._use(self._begun(spec, spec.task.perturbation, hold))
        for action in self._active.first_actions():
            self._sim.step(action)

    def _use(self, perturbation: ActivePerturbation) -> None:
        self._active, self._steps = perturbation, 0
        if self._editable is not None:
            self._editable.scene_edit = perturbation.scene_edit()

    def _begun(
        self, spec: EpisodeSpec, perturbation: Perturbation, hold: Array | None
    ) -> ActivePerturbation:
        assert perturbation.level is not None
        episode = PerturbedEpisode(
            dimension=perturbation.dimension,
            level=perturbation.level,
            seed=spec.seed,
            fps=spec.task.fps,
            action=self._action,
            control=self._control,
            features=self._features,
            hold=hold,
        )
        return BY_NAME[perturbation.dimension].begin(episode)

    def _hold_action(self) -> Array | None:
        """Return the action that keeps the robot where the reset put it."""
        if self._control is None:
            return None
        if self._control.hold is not None:
            return np.array(self._control.hold, np.float32)
        return np.array(self._sim.observe([STATE])[STATE], np.float32)

    def step(self, action: Array) -> StepResult:
        """Advance the world by the perturbed action."""
        with proctor_code():
            given = self._active.change_action(np.asarray(action), self._steps)
            self._steps += 1
        return self._sim.step(given)

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the perturbed observation for ``keys``."""
        observation = self._sim.observe(keys)
        with proctor_code():
            return {
                key: self._active.change_observation(key, np.asarray(value), self._steps)
                for key, value in observation.items()
            }

    def physics(self) -> Array:
        """Return the physics state, which is never perturbed."""
        return self._sim.physics()

    def start_state(self) -> Mapping[str, float]:
        """Return the start of the clean episode, before the perturbation changed anything."""
        return self._start

    def close(self) -> None:
        """Close the simulator."""
        self._sim.close()


class LocatedPerturbedSim(PerturbedSim):
    """The same for a simulator that tells where things are."""

    def coordinates(self) -> Mapping[str, float]:
        """Return the true positions."""
        assert isinstance(self._sim, LocatedSim)
        return self._sim.coordinates()
