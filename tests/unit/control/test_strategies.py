"""Strategies of a rollout: what each records, and that nothing recorded is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from proctor.control.loop.session import EmergencyStop
from proctor.control.recording.log import next_seed
from proctor.control.rollout.strategies import (
    BaseStrategy,
    EpisodePlan,
    EpisodicStrategy,
    HighlightStrategy,
    SentryStrategy,
    sentry_seconds,
)
from proctor.errors import RobotError
from tests.unit.control.rollout_rig import FPS, Rig, spec


def test_base_drives_until_the_time_is_over(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    with rig.running(duration_s=1.5) as (loop, _):
        BaseStrategy(spec).run(loop)
    assert [sent["shoulder.pos"] for sent in rig.robot.sent] == list(range(1, 16))
    assert not rig.robot.torque


def test_a_key_ends_a_rollout(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    rig.press(0.5, "escape")
    with rig.running() as (loop, _):
        BaseStrategy(spec).run(loop)
    assert len(rig.robot.sent) == 5


def test_the_emergency_key_switches_the_motors_off(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    rig.press(0.5, "backspace")
    with pytest.raises(EmergencyStop), rig.running() as (loop, _):
        BaseStrategy(spec).run(loop)
    assert not rig.robot.torque
    assert "robot.stop" in rig.robot.script.events


def test_interpolation_sends_more_targets_and_records_as_many_frames(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", multiplier=2)
    with rig.running(duration_s=2) as (loop, recorder):
        SentryStrategy(spec, recorder, 300).run(loop)
    sent = [target["shoulder.pos"] for target in rig.robot.sent]
    assert sent[:5] == [1, 1.5, 2, 2.5, 3]
    actions = [row[0] for row in rig.column("action")]
    assert actions == list(range(1, len(actions) + 1))
    assert abs(len(actions) - 2 * FPS) <= 1


def test_sentry_begins_a_new_episode_after_its_length(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    with rig.running(duration_s=2.5) as (loop, recorder):
        SentryStrategy(spec, recorder, 1).run(loop)
    assert rig.frames() == [10, 10, 5]
    assert rig.ends() == ["time", "time", "stop"]
    assert rig.source.episodes == [0]
    times = [row[0] if isinstance(row, list) else row for row in rig.column("extra.time_s")]
    assert times[10] == pytest.approx(0.1, abs=0.11)


@pytest.mark.parametrize(
    ("cameras", "fps", "mb", "seconds"),
    [
        ([], 30.0, 200, 300.0),
        ([(480, 640, 3)], 30.0, 200, 1820.4444444444443),
        ([(480, 640, 3), (720, 1280, 3)], 30.0, None, 1820.4444444444443),
        ([(24, 32, 3)], 10.0, 1, 10922.666666666664),
    ],
)
def test_the_length_of_sentry_episodes_is_that_of_lerobot(
    cameras: list[tuple[int, int, int]], fps: float, mb: int | None, seconds: float
) -> None:
    assert sentry_seconds(cameras, fps, mb) == pytest.approx(seconds)


def test_highlight_saves_the_seconds_before_the_key(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    rig.press(2.0, "s")
    rig.press(3.0, "s")
    with rig.running(duration_s=5) as (loop, recorder):
        HighlightStrategy(spec, recorder, "s", 0.5, 1024).run(loop)
    assert rig.frames() == [15]
    assert [row[0] for row in rig.column("action")] == list(range(16, 31))


def test_highlight_keeps_within_its_memory(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    with rig.running(duration_s=3) as (loop, recorder):
        strategy = HighlightStrategy(spec, recorder, "s", 1e6, 1)
        strategy.run(loop)
        assert strategy.buffered_bytes <= 2**20
    assert rig.frames() == []


def test_highlight_saves_a_running_recording_at_the_end(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    rig.press(0.95, "s")
    with rig.running(duration_s=2) as (loop, recorder):
        HighlightStrategy(spec, recorder, "s", 0, 1024).run(loop)
    assert rig.frames() == [10]


PLAN = EpisodePlan(n_episodes=2, episode_time_s=0.5, reset_time_s=1.0)


def test_episodic_records_episodes_and_resets_the_policy(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    with rig.running() as (loop, recorder):
        EpisodicStrategy(spec, recorder, PLAN, loop.pose(), teleop=rig.teleop).run(loop)
    assert rig.frames() == [5, 5]
    assert rig.source.episodes == [0, 1]
    assert [row[0] for row in rig.column("action")] == [1, 2, 3, 4, 5] * 2


def test_episodic_returns_to_the_start_pose_without_a_teleoperator(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    with rig.running() as (loop, recorder):
        EpisodicStrategy(spec, recorder, PLAN, {"shoulder.pos": 0.0}).run(loop)
    between = [sent["shoulder.pos"] for sent in rig.robot.sent[5:-5]]
    assert between[-1] == 0
    assert between == sorted(between, reverse=True)


def test_an_episode_of_a_slow_policy_lasts_no_longer(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    act = rig.source.act
    rig.source.act = lambda seen: (rig.clock.advance(0.2), act(seen))[1]  # type: ignore[method-assign]
    plan = EpisodePlan(n_episodes=1, episode_time_s=0.5, reset_time_s=0.0)
    with rig.running() as (loop, recorder):
        EpisodicStrategy(spec, recorder, plan, loop.pose()).run(loop)
    assert rig.frames() == [3]  # begun at 0, 0.2 and 0.4 s
    assert rig.ends() == ["time"]


def test_a_resumed_rollout_records_other_scenes(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", scene=True)
    plan = EpisodePlan(n_episodes=2, episode_time_s=0.5, reset_time_s=0.0, first_seed=7)
    with rig.running() as (loop, recorder):
        EpisodicStrategy(spec, recorder, plan, loop.pose()).run(loop)
    assert next_seed(tmp_path / "data", 7) == 9
    assert next_seed(tmp_path / "none", 7) == 7


def test_episodic_records_an_episode_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    rig.press(0.3, "left")
    with rig.running() as (loop, recorder):
        EpisodicStrategy(spec, recorder, PLAN, loop.pose(), teleop=rig.teleop).run(loop)
    assert rig.frames() == [5, 5]
    assert rig.source.episodes == [0, 1, 2]


def test_a_simulated_scene_resets_itself_and_ends_successful_episodes(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", scene=True)
    rig.robot.scene.rule = lambda seed: seed == 7 and len(rig.robot.sent) >= 2
    plan = EpisodePlan(n_episodes=2, episode_time_s=0.5, reset_time_s=1e6, first_seed=7)
    with rig.running() as (loop, recorder):
        EpisodicStrategy(spec, recorder, plan, loop.pose()).run(loop)
    assert rig.frames() == [2, 5]
    assert rig.ends() == ["success", "time"]
    assert rig.robot.scene.seeds == [7, 8]


def test_a_failing_bus_saves_the_running_episode(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    rig.robot.script.fail("get_observation", RobotError("gone", code="robot.gone"), at=7)
    with pytest.raises(RobotError), rig.running() as (loop, recorder):
        SentryStrategy(spec, recorder, 300).run(loop)
    assert rig.frames() == [7]
    assert rig.ends() == ["error"]
    assert not rig.robot.torque


def test_a_signal_saves_the_running_episode(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    rig.at(0.75, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with rig.running() as (loop, recorder):
        SentryStrategy(spec, recorder, 300).run(loop)
    assert rig.ends() == ["signal"]
    assert rig.frames() == [8]
    assert not rig.robot.torque
