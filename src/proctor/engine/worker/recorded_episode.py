"""An episode that is recorded: the observation before every action, and the action's label."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from proctor.benchmarks.base import PendingImage, PipelinedSim, Sim
from proctor.callbacks.staged_episodes import EpisodeRecorder, RecordingOptions
from proctor.engine.expert_labeler import ExpertLabeler
from proctor.engine.worker.episode import ObservedEpisode, Window, image_keys
from proctor.errors import PluginError
from proctor.features import SUCCESS, ActionSpec, Array, Observation
from proctor.types import EpisodeSpec, StepResult

_MOST_AHEAD = 4
"""Frames whose images may be under way while the simulator goes on."""


@dataclass(frozen=True)
class EpisodeRecording:
    """How one episode is recorded, and which expert labels it."""

    recording: RecordingOptions
    labeler: ExpertLabeler | None = None
    """Labels every step; None: the policy's own actions are the labels."""


@dataclass(frozen=True)
class _Frame:
    """A step that is to be written, once the images that it has requested are there."""

    observed: Observation
    requested: Mapping[str, PendingImage]
    label: Array
    step: StepResult


class RecordingEpisode(ObservedEpisode):
    """Observes the recorded features at every step, and renders nothing twice.

    Images that only the recording needs are requested, and collected some steps later.
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
        labeled_by = () if self._labeler is None else self._labeler.inputs
        self._requested = [
            key for key in self._recorded if key in self._image_keys and key not in labeled_by
        ]
        self._pipelined = sim if isinstance(sim, PipelinedSim) else None
        self._frames: deque[_Frame] = deque()  # not written yet

    def begin(self) -> None:
        """Begin the recording, reset the simulator and observe the initial state."""
        self._recorder = self._recording.begin(self.spec)
        super().begin()

    def step(self, action: Array) -> StepResult:
        """Execute an action and record the observation before it; the last step ends."""
        requested = self._request_images()
        observed = self._observe_keys([key for key in self._recorded if key not in requested])
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
        self._frames.append(_Frame(before, requested, label, step))
        self._write_frames(0 if self.ended or not requested else _MOST_AHEAD)
        if self.ended:
            assert self._recorder is not None
            self._recorder.end(self._outcome, self.start)
        return step

    def _request_images(self) -> Mapping[str, PendingImage]:
        """Request the recorded images that nothing else has observed since the last step.

        A simulator that renders at once gets no request.
        """
        if self._pipelined is None:
            return {}
        missing = [key for key in self._requested if key not in self._observed_now]
        requested = self._pipelined.request_images(missing) if missing else None
        if requested is None:
            return {}
        self.renders += len(requested)
        return requested

    def _write_frames(self, most_ahead: int) -> None:
        """Write frames until at most ``most_ahead`` are left, whose images may be under way."""
        assert self._recorder is not None
        while len(self._frames) > most_ahead:
            frame = self._frames.popleft()
            start = time.perf_counter()
            images = {key: image() for key, image in frame.requested.items()}
            self.timings.render_s += time.perf_counter() - start
            self._recorder.add({**frame.observed, **images}, frame.label, frame.step)

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
