"""DAgger: a person pauses the policy, corrects it, and the corrections are recorded."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from proctor.control.rollout.dagger import DaggerSettings, DaggerState, DaggerStrategy
from tests.unit.control.rollout_rig import Rig, spec

CORRECTION = {"shoulder.pos": -10.0, "elbow.pos": 5.0, "gripper.pos": 20.0}


def rig_with_keys(tmp_path: Path, *keys: tuple[float, str]) -> Rig:
    rig = Rig(tmp_path / "data")
    rig.teleop.wish = lambda now: dict(CORRECTION)
    for seconds, key in keys:
        rig.press(seconds, key)
    return rig


def run(rig: Rig, settings: DaggerSettings, duration_s: float = 10) -> DaggerStrategy:
    with rig.running(intervention=True, duration_s=duration_s) as (loop, recorder):
        strategy = DaggerStrategy(spec, recorder, rig.teleop, settings, announce=rig.said.append)
        strategy.run(loop)
    return strategy


def test_only_corrections_are_recorded(tmp_path: Path) -> None:
    rig = rig_with_keys(tmp_path, (1.0, "space"), (2.0, "tab"), (4.0, "tab"), (5.0, "space"))
    run(rig, DaggerSettings(n_episodes=1, smooth_handover=False))
    assert rig.ends() == ["key"]
    assert {row[0] if isinstance(row, list) else row for row in rig.column("intervention")} == {
        True
    }
    assert all(row[0] == -10 for row in rig.column("action"))


def test_autonomous_steps_are_marked_apart(tmp_path: Path) -> None:
    rig = rig_with_keys(tmp_path, (1.0, "space"), (1.5, "tab"), (2.5, "tab"), (3.0, "space"))
    run(rig, DaggerSettings(1, record_autonomous=True, smooth_handover=False), duration_s=4)
    marks = [row[0] if isinstance(row, list) else row for row in rig.column("intervention")]
    first, last = marks.index(True), len(marks) - 1 - marks[::-1].index(True)
    assert all(marks[first : last + 1])
    assert 8 <= first <= 11
    assert 8 <= last - first + 1 <= 11
    assert marks[-1] is False
    assert rig.source.episodes == [0, 1]


def test_a_pause_holds_the_pose_and_a_resume_restarts_the_policy(tmp_path: Path) -> None:
    rig = rig_with_keys(tmp_path, (1.0, "space"), (2.0, "space"))
    strategy = run(rig, DaggerSettings(1, smooth_handover=False), duration_s=3)
    held = [sent["shoulder.pos"] for sent in rig.robot.sent[10:19]]
    assert len(set(held)) == 1
    assert rig.source.episodes == [0, 1]
    assert strategy.state is DaggerState.AUTONOMOUS


def test_the_robot_slides_to_a_leader_without_motors(tmp_path: Path) -> None:
    rig = rig_with_keys(tmp_path, (1.0, "space"), (2.0, "tab"), (5.0, "tab"))
    run(rig, DaggerSettings(n_episodes=1))
    moved = [sent["shoulder.pos"] for sent in rig.robot.sent]
    steps = [abs(b - a) for a, b in pairwise(moved)]
    assert max(steps) <= 3
    assert rig.frames()[0] < 25


def test_a_leader_with_motors_moves_to_the_robot(tmp_path: Path) -> None:
    rig = rig_with_keys(tmp_path, (1.0, "space"), (4.0, "tab"), (5.0, "tab"))
    rig.teleop.actuated = True
    run(rig, DaggerSettings(n_episodes=1))
    paused_at = rig.robot.sent[10]["shoulder.pos"]
    assert rig.teleop.feedback[0]["shoulder.pos"] == pytest.approx(-10, abs=2)
    assert any(row["shoulder.pos"] == pytest.approx(paused_at) for row in rig.teleop.feedback)
    assert not rig.teleop.torque


def test_a_correction_that_runs_at_the_end_is_saved(tmp_path: Path) -> None:
    rig = rig_with_keys(tmp_path, (1.0, "space"), (1.5, "tab"))
    run(rig, DaggerSettings(n_episodes=5, smooth_handover=False), duration_s=3)
    assert rig.ends() == ["stop"]


def test_a_correction_can_be_thrown_away(tmp_path: Path) -> None:
    rig = rig_with_keys(tmp_path, (1.0, "space"), (1.5, "tab"), (2.0, "left"), (3.0, "tab"))
    run(rig, DaggerSettings(n_episodes=1, smooth_handover=False))
    assert 9 <= rig.frames()[0] <= 11
