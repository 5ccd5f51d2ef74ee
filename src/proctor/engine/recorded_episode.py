"""An episode that is recorded: the observation before every action, and the action's label."""

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
    """How one episode is recorded, and which expert labels it."""

    recording: RecordingOptions
    labeler: ExpertLabeler | None = None
    """Labels every step; None: the policy's own actions are the labels."""


class RecordedEpisode(ObservedEpisode):
    """Observes the recorded features at every step, and renders nothing twice.

    Unless action noise or the expert changes actions, the simulation is that of any other episode.
    The recording is complete before the episode's end is reported.
    """

    def __init__(
        self,
        sim: Sim,
        spec: EpisodeSpec,
        action: ActionSpec,
        window: Window,
        beat: Callable[[int], None],
        episode_recording: EpisodeRecording,
    ) -> None:
        super().__init__(sim, spec, action, window, beat)
        recording, self._labeler = episode_recording.recording, episode_recording.labeler
        self._recording = recording
        self._recorded = tuple(recording.observed_features)
        self._image_keys |= image_keys(recording.observed_features)
        if self._labeler is not None:
            self._image_keys |= image_keys(self._labeler.features)
        self._noise = recording.noise.of(spec, action)
        self._low, self._high = action.bounds
        self._observed_now: Observation = {}  # since the last step
        self._recorder: EpisodeRecorder | None = None

    def begin(self) -> None:
        """Begin the recording, reset the simulator and observe the initial state."""
        self._recorder = self._recording.begin(self.spec)
        super().begin()

    def step(self, action: Array) -> StepResult:
        """Execute an action and record the observation before it; the last step ends the recording.

        Raises:
            WorkerError: an observation or an expert's action is invalid.
            PluginError: the success of a step is recorded, and the simulator does not report it.
            RunFolderError: the recording cannot be written.
        """
        assert self._recorder is not None
        observed = self._observe_keys(self._recorded)
        check_observation(observed, self._recording.observed_features)
        before = {k: v if k in self._image_keys else np.array(v) for k, v in observed.items()}
        executed, label = self._executed_and_label(action)
        step = super().step(executed)
        if step.success is None and SUCCESS in self._recording.info.features:
            raise PluginError(
                f"the simulator of {self.spec.task.name} does not say whether a step solves it, "
                f"and {SUCCESS} is recorded; a benchmark that cannot say it sets judged = False",
                code="plugin.without-success",
            )
        self._observed_now = {}
        self._recorder.add(before, label, step)
        if self.ended:
            self._recorder.end(self._outcome)
        return step

    def _announce(self, actions: Array, first_observed: int) -> None:
        """Announce nothing: every step observes first, and noise may change the action."""

    def _executed_and_label(self, action: Array) -> tuple[Array, Array]:
        """Return the action to execute and the action to record as the label."""
        if self._labeler is None:
            return self._with_noise(action), self._clipped(action)
        label = self._labeler.expert_action(self._observe_keys(self._labeler.inputs), self.steps)
        executed = label if self._labeler.expert_acts(self.steps) else action
        return self._with_noise(executed), self._clipped(label)

    def _with_noise(self, action: Array) -> Array:
        """Return the action with noise, or unchanged if noise is off."""
        if self._noise is None:
            return action
        pushed = self._clipped(action) + self._noise.noise_at(self.steps)
        return self._clipped(pushed)

    def _clipped(self, action: Array) -> Array:
        """Return the action as the benchmark executes it."""
        action = np.asarray(action, np.float32)
        return np.clip(action, self._low, self._high) if self._action.clipped else action

    def _observe_keys(self, keys: Sequence[str]) -> Observation:
        """Observe those of ``keys`` that were not observed since the last step."""
        missing = [key for key in keys if key not in self._observed_now]
        if missing:
            self._observed_now |= super()._observe_keys(missing)
        return {key: self._observed_now[key] for key in keys}
