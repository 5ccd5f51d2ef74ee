"""Episodes, reset phases and keys of a recording, as LeRobot's unless its outcome was a defect.

The expected lengths are those of tests with LeRobot 0.6.1's record loop (10 frames per second).
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from proctor.callbacks.staged_episodes import EpisodeFilter
from proctor.control.loop.session import EmergencyStop
from proctor.control.recording.log import EpisodeEnd, read_recording_log
from proctor.control.recording.recording import RecordingPlan
from proctor.errors import DeviceNotConnected
from tests.unit.control.recording_rig import PLAN, Rig, image_levels


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "data")


def test_two_episodes_of_six_frames_are_recorded(rig: Rig) -> None:
    result = rig.record()
    assert rig.lengths() == [6, 6]
    assert result.complete
    assert result.frames == 12
    assert not result.partial


def test_the_right_arrow_ends_an_episode_early(rig: Rig) -> None:
    rig.press_at(0.35, "right")
    result = rig.record(replace(PLAN, episode_time_s=2))
    assert rig.lengths() == [4, 20]
    assert result.episodes[0].ended_by is EpisodeEnd.KEY


def test_the_left_arrow_records_the_episode_again_and_the_take_leaves_nothing(rig: Rig) -> None:
    rig.press_at(0.35, "left")
    result = rig.record()
    assert rig.lengths() == [6, 6]
    assert result.takes == 3
    levels = image_levels(rig)  # four frames of the discarded take, then three of the reset
    assert levels == sorted(levels)
    assert levels[0] >= 8


def test_escape_saves_the_partial_episode_and_ends_the_session(rig: Rig) -> None:
    rig.press_at(0.35, "escape")
    result = rig.record(replace(PLAN, n_episodes=3))
    assert rig.lengths() == [4]
    assert not result.complete
    assert result.partial[0].ended_by is EpisodeEnd.STOP


def test_escape_in_the_reset_phase_keeps_the_episode_before_it(rig: Rig) -> None:
    rig.press_at(0.75, "escape")
    assert not rig.record().complete
    assert rig.lengths() == [6]


def test_the_left_arrow_in_the_reset_phase_removes_the_episode_before_it(rig: Rig) -> None:
    rig.press_at(0.75, "left")
    result = rig.record()
    assert rig.lengths() == [6, 6]
    assert result.takes == 3
    assert sorted(result.episodes) == [0, 1]
    assert image_levels(rig)[0] >= 7


def test_the_right_arrow_in_the_reset_phase_ends_it(rig: Rig) -> None:
    rig.press_at(0.65, "right")
    rig.record(replace(PLAN, reset_time_s=60))
    assert rig.lengths() == [6, 6]
    assert rig.clock.now() < 2


def test_the_right_arrow_before_the_first_frame_ends_nothing(rig: Rig) -> None:
    rig.teleop.wish = lambda now: {"shoulder.pos": 0.0, "elbow.pos": 0.0, "gripper.pos": 0.0}
    starts = []

    def start() -> None:
        starts.append(rig.clock.now())
        rig.keys.press("right")

    rig.teleop.start_episode = start  # type: ignore[method-assign]
    rig.record()
    assert rig.lengths() == [6, 6]
    assert len(starts) == 2


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_finished_episodes_and_the_running_one(
    rig: Rig, signum: signal.Signals
) -> None:
    rig.signal_at(1.25, signum)
    result = rig.record(replace(PLAN, n_episodes=5))
    assert rig.lengths() == [6, 4]
    assert result.partial.keys() == {1}
    assert read_recording_log(rig.root)[1].report.ended_by is EpisodeEnd.SIGNAL


def test_a_signal_before_the_first_frame_saves_nothing(rig: Rig) -> None:
    rig.signals.received = signal.SIGTERM
    result = rig.record()
    assert result.episodes == {}


def test_a_lost_robot_keeps_the_frames_until_then_and_raises(rig: Rig) -> None:
    rig.robot.script.fail("get_observation", DeviceNotConnected("unplugged"), at=13)
    with pytest.raises(DeviceNotConnected):
        rig.record(replace(PLAN, n_episodes=5))
    assert rig.lengths() == [6, 4]
    assert read_recording_log(rig.root)[1].report.ended_by is EpisodeEnd.ERROR
    assert not rig.robot.torque


def test_an_emergency_stop_keeps_the_frames_until_then(rig: Rig) -> None:
    rig.at(0.35, lambda: setattr(rig, "is_emergency", True))
    with pytest.raises(EmergencyStop):
        rig.record()
    assert rig.lengths() == [4]
    assert read_recording_log(rig.root)[0].report.ended_by is EpisodeEnd.STOP


def test_the_action_is_the_one_that_was_sent_and_the_wish_is_kept_beside_it(rig: Rig) -> None:
    rig.teleop.wish = lambda now: {"shoulder.pos": 120.0, "elbow.pos": -5.0, "gripper.pos": 10.0}
    result = rig.record()
    frame = rig.read()[3]
    assert frame["action"].tolist() == [90, -5, 10]
    assert frame["extra.wished_action"].tolist() == [120, -5, 10]
    assert result.episodes[0].changed == {"shoulder.pos": 6}


def test_real_times_are_recorded_beside_the_even_timestamps(rig: Rig) -> None:
    before = rig.robot.send_action

    def slow(action: dict[str, float]) -> dict[str, float]:
        if len(rig.robot.sent) == 2:
            rig.clock.advance(0.17)
        return before(action)

    rig.robot.send_action = slow  # type: ignore[method-assign]
    result = rig.record(replace(PLAN, n_episodes=1))
    dataset = rig.read()
    times = dataset.batch(np.arange(6), ["extra.time_s", "timestamp"])
    assert times["timestamp"] == pytest.approx(np.arange(6) / 10)
    assert times["extra.time_s"] == pytest.approx([0, 0.1, 0.2, 0.37, 0.4, 0.5])
    assert result.episodes[0].jitter.max_ms == pytest.approx(70, abs=0.5)


def test_images_that_repeat_are_marked(rig: Rig) -> None:
    camera = rig.robot.cameras["camera0"]
    rig.at(0.2, lambda: setattr(camera, "frozen", True))
    rig.at(0.4, lambda: setattr(camera, "frozen", False))
    result = rig.record(replace(PLAN, n_episodes=1))
    marks = rig.read().batch(np.arange(6), ["extra.repeated.camera0"])
    assert marks["extra.repeated.camera0"].tolist() == [False, False, True, True, False, False]
    assert result.episodes[0].repeated == {"camera0": 2}


class TestSimulatedScene:
    """A robot with a simulated scene resets it itself and knows how an episode ended."""

    PLAN = RecordingPlan(
        "stack", 2, 2.0, 60.0, keep=EpisodeFilter.SUCCESS, max_takes=8, first_seed=100
    )

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Rig:
        return Rig(tmp_path / "data", scene=True, n_cameras=0)

    def test_every_take_has_its_own_seed_and_no_reset_phase(self, rig: Rig) -> None:
        rig.record(replace(self.PLAN, keep=EpisodeFilter.ALL))
        assert rig.robot.world.seeds == [100, 101]
        assert rig.lengths() == [20, 20]

    def test_an_episode_ends_soon_after_success(self, rig: Rig) -> None:
        rig.robot.world.success = True
        result = rig.record(self.PLAN)
        assert rig.lengths() == [5, 5]
        assert result.episodes[1].success
        assert result.episodes[1].seed == 101

    def test_failed_takes_are_thrown_away(self, rig: Rig) -> None:
        rig.robot.world.rule = lambda seed: seed % 2 == 1
        result = rig.record(self.PLAN)
        assert [report.seed for report in result.episodes.values()] == [101, 103]
        assert (result.takes, result.failed_takes) == (4, 2)

    def test_too_many_failed_takes_end_the_session(self, rig: Rig) -> None:
        result = rig.record(self.PLAN)
        assert result.takes == 8
        assert not result.complete

    def test_without_cameras_the_scene_s_state_is_recorded(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path / "data", scene=True, n_cameras=0)
        rig.robot.world.state_names = ("cube.x", "cube.y")
        rig = self._replanned(rig)
        rig.record(replace(self.PLAN, keep=EpisodeFilter.ALL))
        assert rig.read()[25]["observation.environment_state"].tolist() == [101, 101]

    @staticmethod
    def _replanned(rig: Rig) -> Rig:
        from proctor.control.recording.recorded_dataset import new_dataset
        from proctor.datasets.frames.encoder import CODECS

        rig.dataset = new_dataset(rig.root, rig.robot, 10, video=True, codec=CODECS["h264"])
        return rig
