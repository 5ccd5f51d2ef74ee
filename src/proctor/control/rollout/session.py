"""One rollout: checks, policy, devices, dataset, strategy, and an orderly end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from proctor.config.rollout import RolloutConfig, Strategy
from proctor.control.loop.frame_queue import short_thread_switches
from proctor.control.loop.pacing import Jitter
from proctor.control.loop.session import ControlSession, make_robot, make_teleoperator
from proctor.control.loop.stop_signals import StopSignals
from proctor.control.loop.units import attach_teleoperator
from proctor.control.policy.inference import PreparedSource, prepare_source
from proctor.control.policy.loop import LoopRate, PolicyLoop
from proctor.control.policy.real_time import RealTimeDriver
from proctor.control.recording.log import EpisodeReport, next_seed
from proctor.control.recording.open_recording import ClosedRecording, OpenRecording
from proctor.control.recording.recorded_dataset import RecordedDataset, new_dataset, resumed_dataset
from proctor.control.recording.session import SessionContext
from proctor.control.robot_features import camera_shapes
from proctor.control.rollout.dagger import DaggerKeys, DaggerSettings, DaggerStrategy
from proctor.control.rollout.recorder import (
    INTERVENTION,
    INTERVENTION_FEATURE,
    RolloutRecorder,
)
from proctor.control.rollout.strategies import (
    BaseStrategy,
    EpisodePlan,
    EpisodicStrategy,
    HighlightStrategy,
    RolloutStrategy,
    SentryStrategy,
    sentry_seconds,
)
from proctor.datasets.frames.encoder import CODECS
from proctor.errors import ProctorError
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
    saved: ClosedRecording | None = None
    """The dataset; None if the strategy records nothing."""
    stopped_by: signal.Signals | None = None
    failure: ProctorError | None = None
    """Why the loop failed; the running episode is saved up to its last frame."""


def prepare_rollout(config: RolloutConfig) -> PreparedRollout:
    """Load the policy and check it against the robot and the dataset; open no device."""
    robot = make_robot(config.robot)
    teleop = None if config.teleop is None else make_teleoperator(config.teleop)
    if teleop is not None:
        attach_teleoperator(teleop, robot)
    dataset = _planned_dataset(config, robot) if config.records else None
    if dataset is not None and config.resume:
        config = replace(config, seed=next_seed(dataset.root, config.seed))
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


def run_rollout(prepared: PreparedRollout, around: SessionContext) -> RolloutOutcome:
    """Connect the devices, let the strategy drive, disconnect, and finish the dataset.

    A device or a policy that fails in the loop is the outcome's ``failure``.

    Raises:
        RobotError: a device cannot be connected.
        DatasetError: a frame could not be written; finished episodes are kept.
        KeyboardInterrupt: a signal came before the first tick, or twice.
    """
    config, source = prepared.config, prepared.source.source
    session = ControlSession(
        prepared.robot, prepared.teleop, operator=around.operator, keys=around.keys
    )
    recording: OpenRecording | None = None
    recorder: RolloutRecorder | None = None
    loop: PolicyLoop | None = None
    health, failure, stopped_by = DeviceHealth(), None, None
    with StopSignals() as signals, short_thread_switches():
        try:
            with session:
                if prepared.dataset is not None:
                    capacity = config.dataset.encoder_queue_maxsize
                    recording = OpenRecording(prepared.dataset, capacity)
                    recorder = _recorder(prepared, recording, around)
                loop = PolicyLoop(
                    session,
                    source,
                    LoopRate(config.fps, config.interpolation_multiplier),
                    duration_s=config.duration or None,
                    watcher=around.watcher,
                )
                with session.signals.deferred():
                    _drive(prepared, loop, recorder, around)
                health = prepared.robot.health()
            stopped_by = session.signals.received
        except ProctorError as error:
            if loop is None:
                raise
            failure = error
        except BaseException:
            if recording is not None:
                with signals.deferred():
                    recording.finish(compact=False)
            raise
        finally:
            source.close()
        compact = stopped_by is None and failure is None
        with signals.deferred():
            saved = None if recording is None else recording.finish(compact=compact)
    return RolloutOutcome(
        jitter=loop.jitter(),
        health=health,
        held=source.held if isinstance(source, RealTimeDriver) else 0,
        episodes={} if recorder is None else recorder.saved,
        saved=saved,
        stopped_by=stopped_by,
        failure=failure,
    )


def _recorder(
    prepared: PreparedRollout, recording: OpenRecording, around: SessionContext
) -> RolloutRecorder:
    config = prepared.config
    return RolloutRecorder(
        prepared.robot,
        recording.queue,
        recording.log,
        config.instruction,
        config.fps,
        around.watcher,
    )


def _drive(
    prepared: PreparedRollout,
    loop: PolicyLoop,
    recorder: RolloutRecorder | None,
    around: SessionContext,
) -> None:
    """Let the strategy drive, then return to the start pose."""
    start = loop.pose()
    if recorder is None:
        BaseStrategy(prepared.spec).run(loop)
    else:
        _recording_strategy(prepared, recorder, start, around.announce).run(loop)
    if prepared.config.return_to_initial_position and start:
        loop.move_to(start, RETURN_S)


def _recording_strategy(
    prepared: PreparedRollout,
    recorder: RolloutRecorder,
    start: Action,
    announce: Callable[[str], None],
) -> RolloutStrategy:
    config, spec, settings = prepared.config, prepared.spec, prepared.config.strategy
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
