"""Labels the states of an episode with the actions of the benchmark's scripted expert (DAgger)."""

from __future__ import annotations

import numpy as np

from proctor.benchmarks.base import Benchmark
from proctor.callbacks.action_labels import ExpertLabeling
from proctor.errors import WorkerError
from proctor.features import Array, Observation
from proctor.types import EpisodeSpec


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
        """Return the expert's action as the expert gives it, without clipping.

        Raises:
            WorkerError: the expert returned a wrong shape, or numbers that are not finite.
        """
        # The same dtype as a window: an expert that acts and one that labels get the same bits.
        inputs = {key: np.array(observation[key], self.features[key].dtype) for key in self.inputs}
        action = np.asarray(self._expert(inputs), np.float32)
        if action.shape != (self._size,) or not np.isfinite(action).all():
            raise WorkerError(
                f"the expert gave {action!r:.80} at step {step + 1}, not {self._size} numbers"
            )
        return action

    def expert_acts(self, step: int) -> bool:
        """Whether the expert's action is executed at ``step`` instead of the policy's."""
        return self._labeling.expert_acts(self._spec, step)
