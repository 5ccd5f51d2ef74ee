"""One recording session: checks, devices, dataset, episodes, and an orderly end."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from proctor.callbacks.staged_episodes import Keep
from proctor.config.robot_recording import RobotRecordConfig
from proctor.control.approach import approach
from proctor.control.frame_queue import FrameQueue, short_thread_switches
from proctor.control.keys import KeyHub
from proctor.control.recorded_dataset import (
    RecordedDataset,
    new_dataset,
    only_task,
    resumed_dataset,
)
from proctor.control.recording import Announce, RecordingPlan, RecordingResult, RecordingRun
from proctor.control.recording_log import RecordingLog, read_recording_log
from proctor.control.session import ControlSession, make_robot, make_teleoperator
from proctor.control.stop_signals import StopSignals
from proctor.control.take import ControlLoop, LoopWatcher
from proctor.control.units import attach_teleoperator
from proctor.datasets.frames.encoder import CODECS
from proctor.datasets.writer import DatasetWriter
from proctor.errors import UsageError
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


@dataclass
class RecordingOutcome:
    """A session that has ended."""

    result: RecordingResult
    root: Path
    n_episodes: int
    """Episodes in the dataset, with those of earlier sessions."""
    health: DeviceHealth
    waited_s: float
    """Seconds that the control loop waited for the encoder."""
    note: str | None = None
    """Why the dataset's files were not compacted; None if they were."""
    is_removed: bool = False
    """Whether the new dataset was removed, because it has no episode."""
    stopped_by: signal.Signals | None = None


@dataclass(frozen=True)
class Surroundings:
    """The person at the session and who watches it."""

    keys: KeyHub
    operator: Operator | None = None
    announce: Announce = lambda line: None
    watcher: LoopWatcher | None = None


def prepare_recording(config: RobotRecordConfig) -> PreparedRecording:
    """Check all that can be checked before a device is opened; write nothing.

    Raises:
        UsageError: with one line that says what to change.
    """
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
    keep = config.record.keep or (Keep.SUCCESS if teleop.is_scripted else Keep.ALL)
    if robot.scene is None and config.record.keep is Keep.SUCCESS:
        raise UsageError(
            "--record.keep=success needs a simulated robot, which judges its episodes itself",
            code="flag.conflict",
        )
    judged = robot.scene is not None and keep is Keep.SUCCESS
    plan = RecordingPlan(
        task=task,
        n_episodes=settings.num_episodes,
        episode_time_s=settings.episode_time_s,
        reset_time_s=settings.reset_time_s,
        keep=Keep.SUCCESS if judged else Keep.ALL,
        max_takes=config.max_takes if judged else None,
        first_seed=_first_seed(config, root),
    )
    return PreparedRecording(config, robot, teleop, dataset, plan)


def _first_seed(config: RobotRecordConfig, root: Path) -> int:
    """Return the seed of the first take: after those that earlier sessions recorded."""
    if not config.resume:
        return config.seed
    used = [line.report.seed for line in read_recording_log(root).values()]
    return max([config.seed, *(seed + 1 for seed in used if seed is not None)])


def run_recording_session(prepared: PreparedRecording, around: Surroundings) -> RecordingOutcome:
    """Connect the devices, record, disconnect them, and finish the dataset.

    Raises:
        RobotError: a device failed; finished episodes and the running one are in the dataset.
        DatasetError: a frame could not be written; finished episodes are kept.
        KeyboardInterrupt: a signal came before the first tick, or twice.
    """
    session = ControlSession(
        prepared.robot, prepared.teleop, operator=around.operator, keys=around.keys
    )
    saving: _Saving | None = None
    with StopSignals() as signals, short_thread_switches():
        try:
            with session:
                saving = _Saving(prepared)
                saving.record(session, around)
        except BaseException:
            if saving is not None:
                with signals.deferred():
                    saving.finish(stopped_by=None, clean=False)
            raise
        with signals.deferred():
            return saving.finish(stopped_by=session.signals.received, clean=True)


class _Saving:
    """The open dataset of a session, with the thread that writes it."""

    def __init__(self, prepared: PreparedRecording) -> None:
        self._prepared = prepared
        self._writer: DatasetWriter = prepared.dataset.open()
        self._queue = FrameQueue(self._writer, prepared.config.dataset.encoder_queue_maxsize)
        self._log = RecordingLog(prepared.dataset.root)
        self._log.open()
        self._run: RecordingRun | None = None
        self._health = DeviceHealth()

    def record(self, session: ControlSession, around: Surroundings) -> None:
        """Move to the first target, then record the episodes of the plan."""
        prepared = self._prepared
        loop = ControlLoop(
            prepared.robot,
            prepared.teleop,
            session.keys.reader(),
            session.should_end,
            prepared.dataset.fps,
            around.watcher,
        )
        self._run = RecordingRun(loop, self._queue, self._log, prepared.plan, around.announce)
        with session.signals.deferred():
            if prepared.robot.scene is None:
                move = partial(approach, prepared.robot, prepared.teleop.get_action)
                move(prepared.dataset.fps, session.should_end)
            try:
                self._run.run()
            finally:
                self._health = prepared.robot.health()

    def finish(self, *, stopped_by: signal.Signals | None, clean: bool) -> RecordingOutcome:
        """Write what is in the queue and close the dataset.

        The files are compacted at a clean end only; a stopped session ends fast.
        """
        note: str | None = None
        is_removed = False
        try:
            self._queue.flush()
        finally:
            self._queue.close()
            if clean and stopped_by is None:
                note = self._writer.close()
            else:
                self._writer.release()
            is_removed = self._prepared.dataset.remove_if_empty(self._writer)
        assert self._run is not None
        return RecordingOutcome(
            result=self._run.result,
            root=self._prepared.dataset.root,
            n_episodes=self._writer.n_episodes,
            health=self._health,
            waited_s=self._queue.waited_s,
            note=note,
            is_removed=is_removed,
            stopped_by=stopped_by,
        )
