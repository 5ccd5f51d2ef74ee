"""The benchmark's expert beside an episode that another policy plays: asked at every step."""

from __future__ import annotations

import numpy as np

from proctor.benchmarks.base import Benchmark
from proctor.callbacks.action_labels import ExpertLabeling
from proctor.engine.episode import check_observation
from proctor.errors import WorkerError
from proctor.features import Array, Observation
from proctor.types import EpisodeSpec


class ExpertLabeler:
    """Says what the expert would do in each state of one episode, and when it plays itself."""

    def __init__(self, benchmark: Benchmark, spec: EpisodeSpec, teaching: ExpertLabeling) -> None:
        self.inputs = benchmark.expert_inputs
        offered = benchmark.features()
        self.features = {key: offered[key] for key in self.inputs}
        self._expert = benchmark.expert(spec.task)
        self._size = benchmark.action.size
        self._spec, self._teaching = spec, teaching

    def advice(self, seen: Observation, step: int) -> Array:
        """Return what the expert would do, as it says it: the range is not its concern.

        Raises:
            WorkerError: what it is shown, or what it says, is no good.
        """
        check_observation(seen, self.features)
        # As windows hold it: the expert that plays and the one that advises see the same bits.
        shown = {key: np.array(seen[key], self.features[key].dtype) for key in self.inputs}
        said = np.asarray(self._expert(shown), np.float32)
        if said.shape != (self._size,) or not np.isfinite(said).all():
            raise WorkerError(
                f"the expert gave {said!r:.80} at step {step + 1}, not {self._size} numbers"
            )
        return said

    def plays(self, step: int) -> bool:
        """Whether the expert plays ``step`` in the policy's place."""
        return self._teaching.expert_acts(self._spec, step)
