"""A simulator that observes the expert's action too: the expert runs where the simulator is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from proctor.benchmarks.base import Benchmark, LocatedSim
from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.starts import pass_on_start
from proctor.features import Array, Expert, Feature, FeatureKind, Observation
from proctor.types import EpisodeSpec, StepResult, Task
from proctor_worker.records import EXPERT_ACTION


def features_with_expert(benchmark: Benchmark) -> dict[str, Feature]:
    """Return the benchmark's features, and the expert's action if there is an expert."""
    features = dict(benchmark.features())
    if benchmark.expert_inputs:
        action = Feature(FeatureKind.ACTION, (benchmark.action.size,), "float64")
        features[EXPERT_ACTION] = action
    return features


class ExpertSim:
    """The simulator of a task, with the observation key ``EXPERT_ACTION``."""

    def __init__(self, benchmark: Benchmark, task: Task) -> None:
        self._benchmark, self._task = benchmark, task
        self._sim = sim = benchmark.make_sim(task)
        self._expert: Expert | None = None
        if isinstance(sim, LocatedSim):
            self.coordinates: Callable[[], Mapping[str, float]] = sim.coordinates
        pass_on_start(self, sim)

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the simulator; every episode has a new expert."""
        self._expert = None
        self._sim.reset(spec)

    def step(self, action: Array) -> StepResult:
        """Advance the simulator."""
        return self._sim.step(action)

    def observe(self, keys: Sequence[str]) -> Observation:
        """Observe ``keys``; the expert's action is computed here."""
        if EXPERT_ACTION not in keys:
            return self._sim.observe(keys)
        asked = [key for key in keys if key != EXPERT_ACTION]
        seen = dict(self._sim.observe(asked)) if asked else {}
        inputs = self._sim.observe(self._benchmark.expert_inputs)
        with proctor_code():
            if self._expert is None:
                self._expert = self._benchmark.expert(self._task)
            seen[EXPERT_ACTION] = self._expert(inputs)
        return seen

    def physics(self) -> Array:
        """Return the physics state."""
        return self._sim.physics()

    def close(self) -> None:
        """Close the simulator."""
        self._sim.close()
