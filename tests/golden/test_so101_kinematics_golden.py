"""Kinematics of the SO-101 against LeRobot 0.6.1's, which solves them with placo 0.9.15.

Forward kinematics agree. Inverse kinematics differ on purpose:

- placo takes one step per call and leaves up to 39 mm; ours iterates until it has converged. It is
  compared by the position error that is left, which is never larger than LeRobot's.
- placo's answer also depends on the pose of an earlier call. Ours depends on its arguments only.
- placo hands the gripper's value through; ours takes and returns the five joints of the arm.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.so101.kinematics import ARM, JOINT_NAMES, forward, inverse

GOLDEN = json.loads((Path(__file__).parent / "data/robots/ee_kinematics.json").read_text())


def _arm(degrees: list[float]) -> Any:
    return np.radians(degrees[: len(ARM)])


def test_joints_have_lerobots_order() -> None:
    assert list(JOINT_NAMES) == GOLDEN["joint_names"]


@pytest.mark.parametrize("case", GOLDEN["forward"], ids=lambda case: str(case["q_deg"]))
def test_forward_kinematics_are_lerobots(case: dict[str, Any]) -> None:
    np.testing.assert_allclose(forward(_arm(case["q_deg"])), case["T"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("number", range(len(GOLDEN["inverse"])))
def test_inverse_kinematics_leave_no_larger_error_than_lerobots(number: int) -> None:
    case = GOLDEN["inverse"][number]
    start = _arm(case["q_start"])
    target = forward(start)
    target[:3, 3] += case["dp"]
    found = inverse(target, start, orientation_weight=case["orientation_weight"])
    assert found.position_error_m <= case["pos_error_m"] + 1e-6
    reached = forward(found.angles)[:3, 3]
    assert np.linalg.norm(reached - target[:3, 3]) == pytest.approx(found.position_error_m)
    for angle, joint in zip(found.angles, ARM, strict=True):
        assert joint.low <= angle <= joint.high


def test_nearly_every_move_ends_within_a_millimetre() -> None:
    errors = []
    for case in GOLDEN["inverse"]:
        start = _arm(case["q_start"])
        target = forward(start)
        target[:3, 3] += case["dp"]
        solution = inverse(target, start, orientation_weight=case["orientation_weight"])
        errors.append(solution.position_error_m)
    assert sum(error < 0.001 for error in errors) >= len(errors) - 2  # two are out of reach


def test_where_lerobot_converges_the_angles_agree() -> None:
    """The arm at zero, 1 cm forward: one step of placo's leaves half a millimetre."""
    case = next(case for case in GOLDEN["inverse"] if case["dp"] == [0.01, 0, 0])
    start = _arm(case["q_start"])
    target = forward(start)
    target[:3, 3] += case["dp"]
    found = inverse(target, start, orientation_weight=case["orientation_weight"])
    np.testing.assert_allclose(np.degrees(found.angles), case["q_out"][:5], atol=0.5)
