"""Units and closed-form kinematics of the SO-101."""

import numpy as np
import pytest

from proctor.benchmarks.so101.kinematics import (
    JAW,
    JOINT_NAMES,
    forward,
    from_unit,
    from_units,
    inverse,
    joint_frames,
    reach_down,
    to_unit,
    to_units,
)


def test_gripper_is_0_when_closed_and_100_when_open() -> None:
    assert to_unit("gripper", JAW.low) == pytest.approx(0.0)
    assert to_unit("gripper", JAW.high) == pytest.approx(100.0)


def test_other_joints_are_in_degrees_about_the_middle() -> None:
    assert to_unit("elbow_flex", np.pi / 4) == pytest.approx(45.0)


@pytest.mark.parametrize("joint", JOINT_NAMES)
def test_units_convert_back(joint: str) -> None:
    assert to_unit(joint, from_unit(joint, 12.5)) == pytest.approx(12.5)


def test_all_joints_convert_together() -> None:
    values = np.array([1.0, -2.0, 3.0, -4.0, 5.0, 60.0])
    np.testing.assert_allclose(to_units(from_units(values)), values, rtol=1e-6)


@pytest.mark.parametrize(
    ("position", "yaw", "pitch"),
    [
        ((0.2, 0.05, 0.02), 0.3, np.pi / 2),
        ((0.16, -0.08, 0.05), -0.6, np.pi / 2),
        ((0.17, 0.19, 0.09), 0.0, 1.1),
    ],
)
def test_hand_reaches_down_to_a_point(
    position: tuple[float, float, float], yaw: float, pitch: float
) -> None:
    hand = joint_frames(reach_down(np.array(position), yaw, pitch))[-1]
    np.testing.assert_allclose(hand[:3, 3] - 0.0981274 * hand[:3, 2], position, atol=5e-4)
    assert hand[2, 2] == pytest.approx(np.sin(pitch), abs=1e-4)
    if pitch == np.pi / 2:
        assert np.arctan2(hand[1, 0], hand[0, 0]) == pytest.approx(yaw, abs=1e-3)


def test_inverse_kinematics_find_a_pose_that_the_arm_can_take() -> None:
    wanted = np.radians([20.0, -15.0, 25.0, 60.0, -30.0])
    found = inverse(forward(wanted), wanted + 0.2, orientation_weight=0.1)
    assert found.position_error_m < 1e-6
    assert found.rotation_error < 1e-5


def test_a_pose_out_of_reach_leaves_its_error() -> None:
    target = forward(np.zeros(5))
    target[:3, 3] = (1.0, 0.0, 0.2)
    assert inverse(target, np.zeros(5)).position_error_m > 0.5
