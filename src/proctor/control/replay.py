"""Repeat a recorded episode on a robot: the same actions at the dataset's rate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from proctor.config.replay import ReplayConfig
from proctor.control.loop.pacing import Jitter, Pacer
from proctor.control.loop.session import ControlSession
from proctor.control.loop.units import channels_of, check_channels
from proctor.control.policy.approach import approach
from proctor.control.recording.log import read_recording_log
from proctor.control.recording.recorded_dataset import check_robot_type
from proctor.control.recording.recorded_episode import changed_channels
from proctor.control.terminal.keys import ControlKey
from proctor.datasets.reader import open_handle
from proctor.errors import UsageError
from proctor.features import ACTION
from proctor.robots.base import Action, Robot

_REMEDY = "replay another dataset"


@dataclass(frozen=True)
class RecordedActions:
    """The actions of one episode, by channel."""

    actions: list[Action]
    fps: int
    has_units: bool
    """Whether the dataset states units; those of LeRobot do not."""
    seed: int | None
    """Seed of the simulated scene in which it was recorded."""


@dataclass(frozen=True)
class ReplayResult:
    """What was sent, and how regular the loop was."""

    sent: int
    jitter: Jitter
    changed: dict[str, int] = field(default_factory=dict)
    """Channel -> actions that a limit changed."""
    success: bool | None = None
    """The verdict of a simulated scene."""


def read_actions(config: ReplayConfig, robot: Robot) -> RecordedActions:
    """Read the episode of ``config`` and check that ``robot`` can repeat it."""
    settings = config.dataset
    assert settings.episode is not None
    name: str | Path | None = settings.repo_id or settings.root
    assert name is not None
    handle = open_handle(name, settings.root if settings.repo_id else None)
    dataset = handle.frames([settings.episode])
    info = dataset.info
    if settings.fps is not None and settings.fps != info.fps:
        raise UsageError(
            f"--dataset.fps={settings.fps}: the dataset has {info.fps} frames per second, and an "
            "episode is repeated at its own rate; leave --dataset.fps out",
            code="dataset.fps-mismatch",
        )
    check_robot_type(info, robot, _REMEDY)
    entry = info.entry(ACTION)
    names = channels_of(entry).names
    same = sorted(names) == sorted(robot.action_features)
    channels = {n: robot.action_features[n] for n in names} if same else robot.action_features
    has_units = check_channels(ACTION, entry, channels, _REMEDY)
    rows = dataset.batch(np.arange(len(dataset)), [ACTION])[ACTION]
    logged = read_recording_log(handle.source.root).get(settings.episode)
    return RecordedActions(
        actions=[dict(zip(names, map(float, row), strict=True)) for row in rows],
        fps=info.fps,
        has_units=has_units,
        seed=None if logged is None else logged.report.seed,
    )


def replay(session: ControlSession, recorded: RecordedActions) -> ReplayResult:
    """Move to the first action, then send all actions; Esc or a signal ends it early.

    A simulated scene is reset to the episode's seed, if that is known.
    """
    robot, keys = session.robot, session.keys.reader()
    if robot.scene is not None and recorded.seed is not None:
        robot.scene.reset(recorded.seed)
    else:
        first = recorded.actions[0]
        approach(robot, lambda: first, recorded.fps, session.should_end)
    pacer, changed, sent = Pacer(robot.clock, recorded.fps), Counter[str](), 0
    for action in recorded.actions:
        pacer.tick()
        stopped = any(key in ControlKey.STOP for key in keys.poll())
        if session.should_end() or stopped:
            break
        robot.get_observation()
        changed.update(changed_channels(action, robot.send_action(action)))
        sent += 1
    if sent:
        robot.clock.sleep_until(robot.clock.now() + 1 / recorded.fps)  # time of the last action
    return ReplayResult(
        sent=sent,
        jitter=pacer.jitter(),
        changed=dict(changed),
        success=None if robot.scene is None else robot.scene.succeeded(),
    )
