"""A benchmark of Proctor whose simulators run in another interpreter (``--env.python``).

Tasks, specs, features and rules are those of the benchmark in this process, which needs no
simulator for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from proctor.benchmarks.base import (
    Benchmark,
    BenchmarkConfig,
    BenchmarkDefaults,
    BenchmarkMaker,
    BenchmarkPlugin,
    Sim,
    with_defaults,
)
from proctor.benchmarks.isolated.benchmark import (
    IsolatedEnvironments,
    computed_elsewhere,
    worker_interpreter,
    world_config,
)
from proctor.benchmarks.isolated.expert_sim import ExpertSim, features_with_expert
from proctor.benchmarks.isolated.launch import Launch
from proctor.benchmarks.isolated.local_sim import worlds_run_here
from proctor.benchmarks.isolated.world_process import one_shot
from proctor.errors import UsageError
from proctor.features import Expert, Feature
from proctor.types import EpisodeSpec, Task
from proctor_worker.records import EXPERT_ACTION

_WORLD = "proctor.benchmarks.isolated.builtin_world:make"


def builtin_maker(
    plugin: BenchmarkPlugin, place: str, config: BenchmarkConfig
) -> Callable[[], Benchmark]:
    """Return a picklable factory of the benchmark with simulators in the config's interpreter.

    ``place`` is where the other interpreter imports the plug-in, ``module:ATTRIBUTE``.
    """
    if plugin.probe is not None:
        raise UsageError(
            f"--env.type={config.type} does not run in another interpreter; use --env.type=gym",
            code="flag.conflict",
        )
    asked = {"plugin": place, "config": world_config(config)}
    launch = Launch(_WORLD, asked, config.python, config.command, needs_proctor=True)
    with one_shot(launch, {}) as process:
        header = process.request("describe")[0]
    variables = header["description"]["variables"]
    facts = (launch, header["interpreter"], variables)
    return BenchmarkMaker(RelocatedBenchmark, (plugin.make, config, *facts))


class RelocatedBenchmark(BenchmarkDefaults):
    """A benchmark that makes its simulators in another interpreter."""

    distributions: tuple[str, ...] = ()  # those of the other interpreter are in the protocol
    preload: tuple[str, ...] = ()
    editable_scenes: bool = False  # the other interpreter renders

    def __init__(
        self,
        make: Callable[..., Benchmark],
        config: BenchmarkConfig,
        launch: Launch,
        interpreter: dict[str, Any],
        variables: dict[str, str],
    ) -> None:
        self._here = here = with_defaults(make(config))
        self._interpreter, self._variables = interpreter, variables
        self.name, self.action = here.name, here.action
        self.warnings, self.notes = here.warnings, here.notes
        self.starts_of = here.starts_of
        self.judged, self.scores = here.judged, here.scores
        self.robot_control, self.places_scenes = here.robot_control, here.places_scenes
        self.worker_interpreter = worker_interpreter(launch, self.features(), interpreter)
        self.expert_inputs: tuple[str, ...] = (EXPERT_ACTION,) if here.expert_inputs else ()
        self._worlds = IsolatedEnvironments(launch, self.features())

    def tasks(self) -> list[Task]:
        """List the configured tasks."""
        return self._here.tasks()

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        """Return episode ``index`` of ``task``."""
        return self._here.spec(task, index, seed)

    def features(self) -> dict[str, Feature]:
        """Return the benchmark's features, and the expert's action if there is an expert."""
        return features_with_expert(self._here)

    def protocol(self) -> dict[str, Any]:
        """Return the benchmark's rules, and what is installed in the other interpreter."""
        return {**self._here.protocol(), "interpreter": self._interpreter}

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check that ``keys`` can be observed in the other interpreter."""
        wanted = [key for key in keys if key != EXPERT_ACTION]
        return self._worlds.preflight(wanted) if wanted else dict(self._variables)

    def make_sim(self, task: Task) -> Sim:
        """Make the simulator of ``task``, in the other interpreter."""
        return ExpertSim(self._here, task) if worlds_run_here() else self._worlds.open(task)

    def expert(self, task: Task) -> Expert:
        """Return the expert of ``task``, which the other interpreter computes."""
        return computed_elsewhere

    def sim_task(self, task: Task) -> Task:
        """Return the task whose simulators run ``task`` too."""
        return self._here.sim_task(task)
