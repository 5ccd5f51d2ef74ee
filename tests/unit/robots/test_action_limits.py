"""Limits of targets: range, speed, distance per step and the way to the first target."""

from __future__ import annotations

import math

import pytest

from proctor.errors import RobotError, UsageError
from proctor.robots.action_limits import ActionLimiter, LimitSettings, StartRamp, per_channel
from proctor.robots.base import Action

CHANNELS = ["shoulder_pan.pos", "gripper.pos"]


def never_read() -> Action:
    raise AssertionError("the pose was read without need")


def at(**pose: float) -> Action:
    return {f"{name}.pos": value for name, value in pose.items()}


def test_one_number_limits_every_channel() -> None:
    assert per_channel("--x", 5, CHANNELS) == {"shoulder_pan.pos": 5.0, "gripper.pos": 5.0}


def test_a_limit_may_name_some_motors_or_channels() -> None:
    assert per_channel("--x", {"gripper": 1}, CHANNELS) == {"gripper.pos": 1.0}
    assert per_channel("--x", {"gripper.pos": 1.5}, CHANNELS) == {"gripper.pos": 1.5}
    assert per_channel("--x", None, CHANNELS) == {}


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"elbow": 1.0}, "robot.limit-unknown-motor"),
        (-5.0, "robot.limit-invalid"),
        (math.nan, "robot.limit-invalid"),
    ],
)
def test_a_wrong_limit_is_refused(value: float | dict[str, float], code: str) -> None:
    with pytest.raises(UsageError) as refused:
        per_channel("--x", value, CHANNELS)
    assert refused.value.code == code


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_a_start_speed_of_none_is_not_at_once(speed: float) -> None:
    with pytest.raises(UsageError) as refused:
        LimitSettings(start_speed=speed)
    assert refused.value.code == "robot.limit-invalid"


def test_a_step_limit_clips_to_the_measured_position_and_counts() -> None:
    limiter = ActionLimiter(LimitSettings(step={"gripper.pos": 5.0}))
    sent = limiter.apply(
        at(gripper=30.0, shoulder_pan=90.0), lambda: at(gripper=10.0, shoulder_pan=0.0), now=0.0
    )
    assert sent == at(gripper=15.0, shoulder_pan=90.0)
    assert limiter.clipped == {"gripper.pos": 1}


def test_targets_without_limits_are_sent_as_they_are_and_the_pose_is_not_read() -> None:
    limiter = ActionLimiter(LimitSettings())
    assert limiter.apply(at(gripper=400.0), never_read, now=0.0) == at(gripper=400.0)
    assert not limiter.clipped


def test_a_joint_range_clips() -> None:
    limiter = ActionLimiter(LimitSettings())
    limiter.restart({"gripper.pos": (0.0, 100.0)})
    assert limiter.apply(at(gripper=130.0), never_read, now=0.0) == at(gripper=100.0)
    assert limiter.apply(at(gripper=-1.0), never_read, now=0.1) == at(gripper=0.0)
    assert limiter.clipped == {"gripper.pos": 2}


def test_a_speed_limit_counts_from_the_measured_pose_then_from_the_last_target() -> None:
    limiter = ActionLimiter(LimitSettings(speed={"gripper.pos": 100.0}))
    pose = at(gripper=10.0)
    assert limiter.apply(at(gripper=50.0), lambda: pose, now=5.0) == at(gripper=10.0)
    assert limiter.apply(at(gripper=50.0), never_read, now=5.02) == at(gripper=pytest.approx(12.0))
    assert limiter.apply(at(gripper=12.5), never_read, now=5.03) == at(gripper=12.5)


def test_the_first_target_is_approached_and_a_moving_one_followed() -> None:
    limiter = ActionLimiter(LimitSettings(start_speed=50.0))
    pose = at(gripper=0.0, shoulder_pan=10.0)
    far = at(gripper=100.0, shoulder_pan=30.0)  # two seconds away
    assert limiter.apply(far, lambda: pose, now=0.0) == pose
    assert limiter.apply(far, never_read, now=1.0) == at(gripper=50.0, shoulder_pan=20.0)
    moved = at(gripper=80.0, shoulder_pan=30.0)
    assert limiter.apply(moved, never_read, now=1.5) == at(gripper=60.0, shoulder_pan=25.0)
    assert limiter.apply(moved, never_read, now=2.0) == moved
    assert limiter.apply(at(gripper=0.0), never_read, now=2.1) == at(gripper=0.0)


def test_a_first_target_at_the_pose_is_sent_at_once() -> None:
    limiter = ActionLimiter(LimitSettings(start_speed=50.0))
    assert limiter.apply(at(gripper=1.5), lambda: at(gripper=0.0), now=0.0) == at(gripper=1.5)


def test_a_pause_and_a_restart_begin_a_new_approach() -> None:
    limiter = ActionLimiter(LimitSettings(start_speed=50.0))
    limiter.apply(at(gripper=0.0), lambda: at(gripper=0.0), now=0.0)
    later = 0.5 + ActionLimiter.IDLE_S + 0.1
    limiter.apply(at(gripper=0.0), never_read, now=0.5)
    assert limiter.apply(at(gripper=90.0), lambda: at(gripper=40.0), now=later) == at(gripper=40.0)
    limiter.restart({})
    assert limiter.apply(at(gripper=90.0), lambda: at(gripper=5.0), now=later) == at(gripper=5.0)


def test_a_first_target_that_is_too_far_away_is_refused() -> None:
    limiter = ActionLimiter(LimitSettings(start_distance=30.0))
    with pytest.raises(RobotError) as refused:
        limiter.apply(at(gripper=31.0), lambda: at(gripper=0.0), now=0.0)
    assert refused.value.code == "robot.start-too-far"
    assert limiter.apply(at(gripper=29.0), lambda: at(gripper=0.0), now=0.0) == at(gripper=29.0)


def test_a_target_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(RobotError) as refused:
        ActionLimiter(LimitSettings()).apply(at(gripper=math.nan), never_read, now=0.0)
    assert refused.value.code == "robot.target-invalid"


def test_a_ramp_without_speed_has_no_effect() -> None:
    ramp = StartRamp(speed=None, max_distance=None)
    ramp.begin(at(gripper=0.0), at(gripper=90.0), now=0.0)
    assert ramp.apply(at(gripper=90.0), now=0.0) == at(gripper=90.0)
