"""One recording session: checks, devices, dataset, episodes, and an orderly end."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import datetime

from proctor.callbacks.staged_episodes import EpisodeFilter
from proctor.config.robot_recording import RobotRecordConfig
from proctor.control.loop.frame_queue import short_thread_switches
from proctor.control.loop.session import ControlSession, make_robot, make_teleoperator
from proctor.control.loop.stop_signals import StopSignals
from proctor.control.loop.units import attach_teleoperator
from proctor.control.policy.approach import approach
from proctor.control.recording.log import next_seed
from proctor.control.recording.open_recording import ClosedRecording, OpenRecording
from proctor.control.recording.recorded_dataset import (
    RecordedDataset,
    new_dataset,
    only_task,
    resumed_dataset,
)
from proctor.control.recording.recorded_episode import ControlLoop, LoopWatcher
from proctor.control.recording.recording import (
    Announce,
    RecordingPlan,
    RecordingResult,
    RecordingRun,
)
from proctor.control.terminal.keys import KeyHub
from proctor.datasets.frames.encoder import CODECS
from proctor.errors import ProctorError, UsageError
from proctor.robots.base import DeviceHealth, Operator, Robot, Teleoperator

_DEFAULT_FPS = 30


@dataclass(frozen=True)
class PreparedRecording:
    """Devices that are not connected yet, and a dataset that fits them."""

    config: RobotRecordConfig
    robot: Robot
    teleop: Teleoperator
    dataset: RecordedDataset
    plan: RecordingPlan


@dataclass(frozen=True)
class RecordingOutcome:
    """A session that has ended."""

    result: RecordingResult
    saved: ClosedRecording
    health: DeviceHealth
    stopped_by: signal.Signals | None = None
    failure: ProctorError | None = None
    """Why the loop failed; the running episode is saved up to its last frame."""


@dataclass(frozen=True)
class SessionContext:
    """The person at the session and who watches it."""

    keys: KeyHub
    operator: Operator | None = None
    announce: Announce = lambda line: None
    watcher: LoopWatcher | None = None


def prepare_recording(config: RobotRecordConfig) -> PreparedRecording:
    """Check all that can be checked before a device is opened; write nothing."""
    assert config.teleop is not None
    settings = config.dataset.stamped(datetime.now())
    root = settings.folder
    robot, teleop = make_robot(config.robot), make_teleoperator(config.teleop)
    attach_teleoperator(teleop, robot)
    if config.resume:
        dataset = resumed_dataset(root, robot, settings.fps)
    else:
        dataset = new_dataset(
            root,
            robot,
            settings.fps or _DEFAULT_FPS,
            video=settings.video,
            codec=CODECS[settings.codec],
        )
    task = settings.single_task or (only_task(root) if config.resume else None)
    if task is None:
        raise UsageError(
            f"{root} has several instructions or none; give --dataset.single_task=TEXT",
            code="flag.missing",
        )
    keep = config.record.keep or (
        EpisodeFilter.SUCCESS if teleop.is_scripted else EpisodeFilter.ALL
    )
    if robot.scene is None and config.record.keep is EpisodeFilter.SUCCESS:
        raise UsageError(
            "--record.keep=success needs a simulated robot, which judges its episodes itself",
            code="flag.conflict",
        )
    judged = robot.scene is not None and keep is EpisodeFilter.SUCCESS
    plan = RecordingPlan(
        task=task,
        n_episodes=settings.num_episodes,
        episode_time_s=settings.episode_time_s,
        reset_time_s=settings.reset_time_s,
        keep=EpisodeFilter.SUCCESS if judged else EpisodeFilter.ALL,
        max_takes=config.max_takes if judged else None,
        first_seed=next_seed(root, config.seed) if config.resume else config.seed,
    )
    return PreparedRecording(config, robot, teleop, dataset, plan)


def run_recording_session(prepared: PreparedRecording, around: SessionContext) -> RecordingOutcome:
    """Connect the devices, record, disconnect them, and finish the dataset.

    A device that fails in the loop is the outcome's ``failure``.

    Raises:
        RobotError: a device cannot be connected.
        DatasetError: a frame could not be written; finished episodes are kept.
        KeyboardInterrupt: a signal came before the first tick, or twice.
    """
    session = ControlSession(
        prepared.robot, prepared.teleop, operator=around.operator, keys=around.keys
    )
    recording: OpenRecording | None = None
    run: RecordingRun | None = None
    with StopSignals() as signals, short_thread_switches():
        try:
            with session:
                capacity = prepared.config.dataset.encoder_queue_maxsize
                recording = OpenRecording(prepared.dataset, capacity)
                run = _make_run(prepared, session, recording, around)
                _record(prepared, session, run)
                health = prepared.robot.health()
        except BaseException as error:
            if recording is None:
                raise
            with signals.deferred():
                saved = recording.finish(compact=False)
            if run is None or not isinstance(error, ProctorError):
                raise
            return RecordingOutcome(run.result, saved, DeviceHealth(), failure=error)
        stopped_by = session.signals.received
        with signals.deferred():
            saved = recording.finish(compact=stopped_by is None)
    return RecordingOutcome(run.result, saved, health, stopped_by)


def _make_run(
    prepared: PreparedRecording,
    session: ControlSession,
    recording: OpenRecording,
    around: SessionContext,
) -> RecordingRun:
    keys, fps = session.keys.reader(), prepared.dataset.fps
    loop = ControlLoop(
        prepared.robot, prepared.teleop, keys, session.should_end, fps, around.watcher
    )
    return RecordingRun(loop, recording.queue, recording.log, prepared.plan, around.announce)


def _record(prepared: PreparedRecording, session: ControlSession, run: RecordingRun) -> None:
    """Move to the first target, then record the episodes of the plan."""
    robot, first_target = prepared.robot, prepared.teleop.get_action
    with session.signals.deferred():
        if robot.scene is None:
            approach(robot, first_target, prepared.dataset.fps, session.should_end)
        run.run()
