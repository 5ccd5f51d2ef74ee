"""One rollout: checks, policy, devices, dataset, strategy, and an orderly end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from proctor.config.rollout import RolloutConfig, Strategy
from proctor.control.dagger import DaggerKeys, DaggerSettings, DaggerStrategy
from proctor.control.frame_queue import FrameQueue, short_thread_switches
from proctor.control.inference import PreparedSource, prepare_source
from proctor.control.pacing import Jitter
from proctor.control.policy_loop import LoopRate, PolicyLoop
from proctor.control.real_time import RealTimeDriver
from proctor.control.recorded_dataset import RecordedDataset, new_dataset, resumed_dataset
from proctor.control.recording_log import EpisodeReport, RecordingLog
from proctor.control.recording_session import Surroundings
from proctor.control.robot_features import camera_shapes
from proctor.control.rollout_recorder import (
    INTERVENTION,
    INTERVENTION_FEATURE,
    RolloutRecorder,
)
from proctor.control.session import ControlSession, make_robot, make_teleoperator
from proctor.control.stop_signals import StopSignals
from proctor.control.strategies import (
    BaseStrategy,
    EpisodePlan,
    EpisodicStrategy,
    HighlightStrategy,
    RolloutStrategy,
    SentryStrategy,
    sentry_seconds,
)
from proctor.control.take import LoopWatcher
from proctor.control.units import attach_teleoperator
from proctor.datasets.frames.encoder import CODECS
from proctor.robots.base import Action, DeviceHealth, Robot, Teleoperator
from proctor.types import EpisodeSpec, Task

RETURN_S = 3.0
"""Seconds of the return to the start pose at the end."""


@dataclass(frozen=True)
class PreparedRollout:
    """A loaded policy and devices that are not connected yet."""

    config: RolloutConfig
    robot: Robot
    teleop: Teleoperator | None
    source: PreparedSource
    dataset: RecordedDataset | None

    def spec(self, index: int) -> EpisodeSpec:
        """Return the spec of the policy's n-th episode."""
        return _spec(self.config, self.robot, index)


@dataclass(frozen=True)
class RolloutOutcome:
    """A rollout that has ended."""

    jitter: Jitter
    health: DeviceHealth
    held: int
    """Steps in which the robot waited for a late reply of the policy."""
    episodes: dict[int, EpisodeReport]
    """Number in the dataset -> report, of the recorded episodes."""
    root: Path | None = None
    n_episodes: int = 0
    """Episodes in the dataset, with those of earlier sessions."""
    note: str | None = None
    """Why the dataset's files were not compacted; None if they were."""
    is_removed: bool = False
    """Whether the new dataset was removed, because it has no episode."""
    stopped_by: signal.Signals | None = None


def prepare_rollout(config: RolloutConfig) -> PreparedRollout:
    """Load the policy and check it against the robot and the dataset; open no device.

    Raises:
        UsageError: with one line that says what to change.
        PolicyError: the policy fails on an observation of zeros.
    """
    robot = make_robot(config.robot)
    teleop = None if config.teleop is None else make_teleoperator(config.teleop)
    if teleop is not None:
        attach_teleoperator(teleop, robot)
    dataset = _planned_dataset(config, robot) if config.records else None
    source = prepare_source(config.policy, config.inference, robot, _spec(config, robot, 0))
    return PreparedRollout(config, robot, teleop, source, dataset)


def _spec(config: RolloutConfig, robot: Robot, index: int) -> EpisodeSpec:
    steps = max(1, round(config.dataset.episode_time_s * config.fps))
    task = Task(
        robot.name, 0, config.instruction or robot.name, config.instruction, steps, config.fps
    )
    return EpisodeSpec(task, index, config.seed + index)


def _planned_dataset(config: RolloutConfig, robot: Robot) -> RecordedDataset:
    settings = config.dataset.stamped(datetime.now())
    is_dagger = config.strategy.type is Strategy.DAGGER
    extra = {INTERVENTION: INTERVENTION_FEATURE} if is_dagger else {}
    if config.resume:
        return resumed_dataset(settings.folder, robot, config.fps, extra)
    planned = new_dataset(
        settings.folder, robot, config.fps, video=settings.video, codec=CODECS[settings.codec]
    )
    return replace(planned, features={**planned.features, **extra})


def run_rollout(prepared: PreparedRollout, around: Surroundings) -> RolloutOutcome:
    """Connect the devices, let the strategy drive, disconnect, and finish the dataset.

    Raises:
        RobotError: a device failed; finished episodes and the running one are in the dataset.
        PolicyError: the policy failed, likewise.
        KeyboardInterrupt: a signal came before the first tick, or twice.
    """
    session = ControlSession(
        prepared.robot, prepared.teleop, operator=around.operator, keys=around.keys
    )
    run: _Run | None = None
    with StopSignals() as signals, short_thread_switches():
        try:
            with session:
                run = _Run(prepared, around)
                with session.signals.deferred():
                    run.drive(session)
        except BaseException:
            if run is not None:
                with signals.deferred():
                    run.finish(stopped_by=None, clean=False)
            raise
        finally:
            prepared.source.source.close()
        with signals.deferred():
            return run.finish(stopped_by=session.signals.received, clean=True)


class _Run:
    """The open dataset of a rollout, if it records, and the loop."""

    def __init__(self, prepared: PreparedRollout, around: Surroundings) -> None:
        self._prepared, self._around = prepared, around
        self._saving: _Saving | None = None
        if prepared.dataset is not None:
            self._saving = _Saving(prepared, prepared.dataset, around.watcher)
        self._loop: PolicyLoop | None = None
        self._health = DeviceHealth()

    def drive(self, session: ControlSession) -> None:
        """Let the strategy drive, then return to the start pose."""
        prepared, config = self._prepared, self._prepared.config
        self._loop = loop = PolicyLoop(
            session,
            prepared.source.source,
            LoopRate(config.fps, config.interpolation_multiplier),
            duration_s=config.duration or None,
            watcher=self._around.watcher,
        )
        start = loop.pose()
        try:
            self._strategy(start, self._around.announce).run(loop)
            if config.return_to_initial_position and start:
                loop.move_to(start, RETURN_S)
        finally:
            self._health = prepared.robot.health()

    def _strategy(self, start: Action, announce: Callable[[str], None]) -> RolloutStrategy:
        prepared, config = self._prepared, self._prepared.config
        settings, spec = config.strategy, prepared.spec
        if self._saving is None:
            return BaseStrategy(spec)
        recorder = self._saving.recorder
        cameras = camera_shapes(prepared.robot).values()
        seconds = sentry_seconds(cameras, config.fps, settings.target_video_file_size_mb)
        if settings.type is Strategy.SENTRY:
            return SentryStrategy(spec, recorder, seconds)
        if settings.type is Strategy.HIGHLIGHT:
            ring = settings.ring_buffer_seconds, settings.ring_buffer_max_memory_mb
            return HighlightStrategy(spec, recorder, settings.save_key, *ring)
        if settings.type is Strategy.EPISODIC:
            plan = EpisodePlan(
                config.dataset.num_episodes,
                config.dataset.episode_time_s,
                config.dataset.reset_time_s,
                config.seed,
            )
            return EpisodicStrategy(
                spec,
                recorder,
                plan,
                start,
                teleop=prepared.teleop,
                returns=settings.reset_to_initial_position,
                announce=announce,
            )
        assert prepared.teleop is not None
        dagger = DaggerSettings(
            n_episodes=settings.num_episodes or config.dataset.num_episodes,
            record_autonomous=settings.record_autonomous,
            smooth_handover=settings.smooth_handover,
            most_frames=max(1, round(seconds * config.fps)),
        )
        keys = DaggerKeys(settings.pause_key, settings.correction_key)
        return DaggerStrategy(spec, recorder, prepared.teleop, dagger, keys, announce)

    def finish(self, *, stopped_by: signal.Signals | None, clean: bool) -> RolloutOutcome:
        """Write what is in the queue and close the dataset."""
        saved = None if self._saving is None else self._saving.finish(clean and stopped_by is None)
        source = self._prepared.source.source
        assert self._loop is not None or not clean
        jitter = None if self._loop is None else self._loop.jitter()
        outcome = RolloutOutcome(
            jitter=jitter
            or Jitter(ticks=0, period_ms=0, p50_ms=None, p99_ms=None, max_ms=None, overruns=0),
            health=self._health,
            held=source.held if isinstance(source, RealTimeDriver) else 0,
            episodes={} if self._saving is None else self._saving.recorder.saved,
            stopped_by=stopped_by,
        )
        if saved is None or self._prepared.dataset is None:
            return outcome
        note, n_episodes, is_removed = saved
        return replace(
            outcome,
            root=self._prepared.dataset.root,
            n_episodes=n_episodes,
            note=note,
            is_removed=is_removed,
        )


class _Saving:
    """The dataset of a rollout, with the thread that writes it."""

    def __init__(
        self, prepared: PreparedRollout, dataset: RecordedDataset, watcher: LoopWatcher | None
    ) -> None:
        config = prepared.config
        self._dataset, self._writer = dataset, dataset.open()
        self._queue = FrameQueue(self._writer, config.dataset.encoder_queue_maxsize)
        log = RecordingLog(dataset.root)
        log.open()
        self.recorder = RolloutRecorder(
            prepared.robot, self._queue, log, config.instruction, config.fps, watcher
        )

    def finish(self, compact: bool) -> tuple[str | None, int, bool]:
        """Close the dataset; return a note, its number of episodes, and whether it was removed."""
        note: str | None = None
        try:
            self._queue.flush()
        finally:
            self._queue.close()
            if compact:
                note = self._writer.close()
            else:
                self._writer.release()
            removed = self._dataset.remove_if_empty(self._writer)
        return note, self._writer.n_episodes, removed
