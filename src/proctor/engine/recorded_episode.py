"""An episode that is recorded: what was seen before every action, and what was wanted there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from proctor.benchmarks.base import Sim
from proctor.callbacks.staged_episodes import EpisodeRecorder, RecordingOptions
from proctor.engine.episode import ObservedEpisode, Window, check_observation, image_keys
from proctor.engine.expert_labeler import ExpertLabeler
from proctor.errors import PluginError
from proctor.features import SUCCESS, ActionSpec, Array, Observation
from proctor.types import EpisodeSpec, StepResult


@dataclass(frozen=True)
class EpisodeRecording:
    """How one episode is recorded, and who says what should be done in it."""

    recording: RecordingOptions
    labeler: ExpertLabeler | None = None
    """Who labels every step; None: the policy's own actions do."""


class RecordedEpisode(ObservedEpisode):
    """Looks at every step at what is recorded, and renders nothing twice.

    Unless it is disturbed or the expert plays, its world goes as that of any other episode. Its
    take is complete before the episode is over for anybody else.
    """

    def __init__(
        self,
        sim: Sim,
        spec: EpisodeSpec,
        action: ActionSpec,
        window: Window,
        beat: Callable[[], None],
        taping: EpisodeRecording,
    ) -> None:
        super().__init__(sim, spec, action, window, beat)
        recording, self._labeler = taping.recording, taping.labeler
        self._recording = recording
        self._recorded = tuple(recording.observed_features)
        self._pictures |= image_keys(recording.observed_features)
        if self._labeler is not None:
            self._pictures |= image_keys(self._labeler.features)
        self._disturbance = recording.noise.of(spec, action)
        self._low, self._high = action.bounds
        self._seen: Observation = {}  # what has been observed of this moment
        self._take: EpisodeRecorder | None = None

    def begin(self) -> None:
        """Begin a take, reset, and observe the starting world."""
        self._take = self._recording.begin(self.spec)
        super().begin()

    def step(self, action: Array) -> StepResult:
        """Take a step and write down what it started from; the last one completes the take.

        Raises:
            WorkerError: the simulator gave what its benchmark does not say.
            PluginError: it does not say whether the task is solved, which is recorded.
            RunFolderError: the take cannot be written.
        """
        assert self._take is not None
        seen = self._look(self._recorded)
        check_observation(seen, self._recording.observed_features)
        seen = {k: v if k in self._pictures else np.array(v) for k, v in seen.items()}
        played, wanted = self._played_and_wanted(action)
        step = super().step(played)
        if step.success is None and SUCCESS in self._recording.info.features:
            raise PluginError(
                f"the simulator of {self.spec.task.name} does not say whether a step solves it, "
                f"and {SUCCESS} is recorded; a benchmark that cannot say it sets judged = False"
            )
        self._seen = {}
        self._take.add(seen, wanted, step)
        if self.ended:
            self._take.end(self._outcome)
        return step

    def _played_and_wanted(self, action: Array) -> tuple[Array, Array]:
        """Return the action that is played, and the one that is written down as right."""
        if self._labeler is None:
            return self._disturbed(action), self._within_range(action)
        advice = self._labeler.advice(self._look(self._labeler.inputs), self.steps)
        played = advice if self._labeler.plays(self.steps) else action
        return self._disturbed(played), self._within_range(advice)

    def _disturbed(self, action: Array) -> Array:
        """Return the action as it came, or a disturbed one."""
        if self._disturbance is None:
            return action
        pushed = self._within_range(action) + self._disturbance.noise_at(self.steps)
        return self._within_range(pushed)

    def _within_range(self, action: Array) -> Array:
        """Return the action as the benchmark takes it."""
        action = np.asarray(action, np.float32)
        return np.clip(action, self._low, self._high) if self._action.clipped else action

    def _look(self, keys: Sequence[str]) -> Observation:
        """Observe what of ``keys`` has not been observed of this moment."""
        missing = [key for key in keys if key not in self._seen]
        if missing:
            self._seen |= super()._look(missing)
        return {key: self._seen[key] for key in keys}
