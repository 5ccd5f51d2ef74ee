"""Labels the states of an episode with the actions of the benchmark's scripted expert (DAgger)."""

from __future__ import annotations

import numpy as np

from proctor.benchmarks.base import Benchmark
from proctor.callbacks.action_labels import ExpertLabeling
from proctor.errors import WorkerError
from proctor.features import Array, Observation
from proctor.system.user_code import plugin_error
from proctor.types import EpisodeSpec
from proctor_worker.boundary import WrongValue, as_numbers


class ExpertLabeler:
    """Computes the expert's action in each state, and decides when the expert acts itself."""

    def __init__(self, benchmark: Benchmark, spec: EpisodeSpec, labeling: ExpertLabeling) -> None:
        self.inputs = benchmark.expert_inputs
        features = benchmark.features()
        self.features = {key: features[key] for key in self.inputs}
        self._expert = benchmark.expert(spec.task)
        self._size = benchmark.action.size
        self._spec, self._labeling = spec, labeling

    def expert_action(self, observation: Observation, step: int) -> Array:
        """Return the expert's action as the expert gives it, without clipping."""
        # The same dtype as a window: an expert that acts and one that labels get the same bits.
        inputs = {key: np.array(observation[key], self.features[key].dtype) for key in self.inputs}
        try:
            action = as_numbers(self._expert(inputs), "its action").astype(np.float32)
        except WrongValue as wrong:
            raise plugin_error(self._expert, f"the expert gave no numbers: {wrong}") from None
        if action.shape != (self._size,) or not np.isfinite(action).all():
            raise WorkerError(
                f"the expert gave {action!r:.80} at step {step + 1}, not {self._size} numbers"
            )
        return action

    def expert_acts(self, step: int) -> bool:
        """Whether the expert's action is executed at ``step`` instead of the policy's."""
        return self._labeling.expert_acts(self._spec, step)
