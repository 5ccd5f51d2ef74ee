"""Kinematics of the SO-101: its joints, forward and inverse kinematics, and LeRobot's units.

Angles are in radians and 0 in the middle of a joint's range, as in the robot's URDF. Poses are
homogeneous 4 x 4 matrices in the frame of the base, in metres.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from proctor.features import Array

Vector = tuple[float, float, float]


class Joint(NamedTuple):
    """A revolute joint: where its frame is in the parent's frame; it turns about its own z axis."""

    name: str
    xyz: Vector
    rpy: Vector
    """Roll, pitch and yaw about the parent's fixed axes, as in a URDF."""
    low: float
    high: float


# Frames and ranges of so101_new_calib.urdf (TheRobotStudio, SO-ARM100, Apache-2.0).
ARM = (
    Joint("shoulder_pan", (0.0388353, -8.97657e-09, 0.0624),
          (3.14159, 4.18253e-17, -3.14159), -1.91986, 1.91986),
    Joint("shoulder_lift", (-0.0303992, -0.0182778, -0.0542),
          (-1.5708, -1.5708, 0.0), -1.74533, 1.74533),
    Joint("elbow_flex", (-0.11257, -0.028, 1.73763e-16),
          (-3.63608e-16, 8.74301e-16, 1.5708), -1.69, 1.69),
    Joint("wrist_flex", (-0.1349, 0.0052, 3.62355e-17),
          (4.02456e-15, 8.67362e-16, -1.5708), -1.65806, 1.65806),
    Joint("wrist_roll", (5.55112e-17, -0.0611, 0.0181),
          (1.5708, 0.0486795, 3.14159), -2.74385, 2.84121),
)  # fmt: skip
"""The joints that move the tool, from the base to the hand."""
JAW = Joint(
    "gripper", (0.0202, 0.0188, -0.0234), (1.5708, -5.24284e-08, -1.41553e-15), -0.174533, 1.74533
)
"""The moving jaw, in the frame of the hand (after ``wrist_roll``); low is closed."""
JOINTS = (*ARM, JAW)
JOINT_NAMES = tuple(joint.name for joint in JOINTS)
CHANNELS = tuple(f"{name}.pos" for name in JOINT_NAMES)
"""Channels of observations and actions, in LeRobot's order."""
GRIPPER = JAW.name
_TOOL: tuple[Vector, Vector] = ((-0.0079, -0.000218121, -0.0981274), (0.0, 3.14159, 0.0))
"""URDF's gripper_frame_link in the frame of the hand: between the fingertips, z points outwards."""
_BY_NAME = {joint.name: joint for joint in JOINTS}


def to_unit(joint: str, angle: float) -> float:
    """Return ``angle`` in LeRobot's unit: degrees, or 0 (closed) to 100 (open) for the gripper."""
    if joint == GRIPPER:
        return 100.0 * (angle - JAW.low) / (JAW.high - JAW.low)
    return float(np.degrees(angle))


def from_unit(joint: str, value: float) -> float:
    """Return a value in LeRobot's unit as an angle in radians."""
    if joint == GRIPPER:
        return JAW.low + value / 100.0 * (JAW.high - JAW.low)
    return float(np.radians(value))


def to_units(angles: Mapping[str, float]) -> Array:
    """Return the angles of all joints in LeRobot's units and order, float32 [6]."""
    return np.array([to_unit(name, angles[name]) for name in JOINT_NAMES], dtype=np.float32)


def from_units(values: Array) -> dict[str, float]:
    """Return six values in LeRobot's units and order as angles by joint."""
    return {
        name: from_unit(name, float(value)) for name, value in zip(JOINT_NAMES, values, strict=True)
    }


def unit_range(joint: str) -> tuple[float, float]:
    """Return the lowest and highest value of a joint in LeRobot's unit."""
    return to_unit(joint, _BY_NAME[joint].low), to_unit(joint, _BY_NAME[joint].high)


def clip_angle(joint: str, angle: float) -> float:
    """Return ``angle`` limited to the joint's range."""
    return min(max(angle, _BY_NAME[joint].low), _BY_NAME[joint].high)


def rotation(rpy: Vector) -> Array:
    """Return the rotation matrix of a URDF's roll, pitch and yaw."""
    (cr, cp, cy), (sr, sp, sy) = np.cos(rpy), np.sin(rpy)
    return np.array(
        [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
            [-sp, cp * sr, cp * cr],
        ]
    )


def transform(xyz: Vector, rpy: Vector) -> Array:
    """Return the pose of a frame in its parent's frame."""
    pose = np.eye(4)
    pose[:3, :3] = rotation(rpy)
    pose[:3, 3] = xyz
    return pose


_FIXED = tuple(transform(joint.xyz, joint.rpy) for joint in ARM)
_TOOL_POSE = transform(*_TOOL)
_LOW = np.array([joint.low for joint in ARM])
_HIGH = np.array([joint.high for joint in ARM])


def joint_frames(angles: Array) -> list[Array]:
    """Return the poses of the five arm joints' frames, after their rotation."""
    frames, pose = [], np.eye(4)
    for fixed, angle in zip(_FIXED, angles, strict=True):
        cos, sin = np.cos(angle), np.sin(angle)
        turn = np.array([[cos, -sin, 0, 0], [sin, cos, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
        pose = pose @ fixed @ turn
        frames.append(pose)
    return frames


def forward(angles: Array) -> Array:
    """Return the tool's pose for the five arm angles, in radians."""
    return np.asarray(joint_frames(angles)[-1] @ _TOOL_POSE)


@dataclass(frozen=True)
class IkSolution:
    """Joint angles that bring the tool to a pose, and what is left of the error."""

    angles: Array
    """float64 [5], in radians, inside the joints' ranges."""
    position_error_m: float
    rotation_error: float
    """Angle between the wanted and the reached orientation, in radians."""


def inverse(
    target: Array,
    start: Array,
    *,
    orientation_weight: float = 0.01,
    max_steps: int = 100,
) -> IkSolution:
    """Bring the tool to ``target``, beginning at the angles ``start``.

    Damped least squares (Levenberg-Marquardt) over position and weighted rotation, in metres and
    radians. The arm has five joints: a pose with any orientation is out of reach, and the weight
    says how much position error may be traded for orientation.
    """
    angles = np.clip(np.asarray(start, dtype=np.float64), _LOW, _HIGH)
    error, damping = _error(target, angles, orientation_weight), 1e-4
    for _ in range(max_steps):
        jacobian = _jacobian(angles, orientation_weight)
        # A joint at its limit that would leave its range is held.
        gradient = jacobian.T @ error
        held = ((angles <= _LOW) & (gradient < 0)) | ((angles >= _HIGH) & (gradient > 0))
        jacobian[:, held] = 0.0
        normal = jacobian.T @ jacobian + damping * np.eye(len(ARM))
        moved = np.clip(angles + np.linalg.solve(normal, jacobian.T @ error), _LOW, _HIGH)
        after = _error(target, moved, orientation_weight)
        if after @ after < error @ error:
            done = np.abs(moved - angles).max() < 1e-7
            angles, error, damping = moved, after, max(damping / 5, 1e-9)
        else:
            done = damping > 1e3
            damping *= 8
        if done or error @ error < 1e-18:
            break
    rest = _error(target, angles, 1.0)
    return IkSolution(angles, float(np.linalg.norm(rest[:3])), float(np.linalg.norm(rest[3:])))


def _error(target: Array, angles: Array, orientation_weight: float) -> Array:
    """Return position and weighted rotation still to go, in the base's frame, float64 [6]."""
    pose = forward(angles)
    turn = _rotation_vector(target[:3, :3] @ pose[:3, :3].T)
    return np.concatenate([target[:3, 3] - pose[:3, 3], orientation_weight * turn])


def _jacobian(angles: Array, orientation_weight: float) -> Array:
    frames = joint_frames(angles)
    tool = (frames[-1] @ _TOOL_POSE)[:3, 3]
    axes = np.array([frame[:3, 2] for frame in frames])
    arms = tool - np.array([frame[:3, 3] for frame in frames])
    return np.vstack([np.cross(axes, arms).T, orientation_weight * axes.T])


def _rotation_vector(matrix: Array) -> Array:
    """Return axis times angle of a rotation matrix."""
    axis = np.array(
        [matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]]
    )
    sine, cosine = np.linalg.norm(axis) / 2, (np.trace(matrix) - 1) / 2
    if sine < 1e-9 and cosine < 0:  # half a turn: the axis is a column of (matrix + I) / 2
        columns = (matrix + np.eye(3)) / 2
        best = columns[:, np.argmax(np.diag(columns))]
        return np.asarray(np.pi * best / np.linalg.norm(best))
    factor = 0.5 if sine < 1e-9 else np.arctan2(sine, cosine) / (2 * sine)
    return np.asarray(axis * factor)


_ELBOW = (0.028, 0.11257)
_WRIST = (0.1349, 0.0052)
"""Elbow from the shoulder and wrist from the elbow at angle 0: forward and up, in metres."""
_SHOULDER = (0.0303992, 0.1166)
"""The axis of shoulder_lift: forward from the pan axis, and above the base's origin."""
_HAND_M = 0.0611 + 0.0981274
"""From the axis of wrist_flex to the tool, along the hand."""
_ROLL_ZERO = 0.0486795


def reach_down(position: Array, yaw: float, pitch: float = np.pi / 2) -> Array:
    """Return the five angles at which the hand points down at ``position``; closed form.

    ``position`` is the point of the hand's axis at the tool, in metres. ``yaw`` is the direction
    from the fixed finger to the moving jaw, in the base's frame, for a hand that points straight
    down. ``pitch`` is the angle of the hand below the horizontal. A position out of reach gives the
    nearest pose in its direction.
    """
    forward_m, left_m = position[0] - ARM[0].xyz[0], position[1]
    pan = -np.arctan2(left_m, forward_m)
    out = np.hypot(forward_m, left_m) - _HAND_M * np.cos(pitch) - _SHOULDER[0]
    up = position[2] + _HAND_M * np.sin(pitch) - _SHOULDER[1]
    upper, lower = np.hypot(*_ELBOW), np.hypot(*_WRIST)
    distance = np.hypot(out, up)
    bend = np.arccos(np.clip((distance**2 - upper**2 - lower**2) / (2 * upper * lower), -1.0, 1.0))
    rise = np.arctan2(up, out) + np.arctan2(lower * np.sin(bend), upper + lower * np.cos(bend))
    lift = np.arctan2(_ELBOW[1], _ELBOW[0]) - rise
    elbow = np.arctan2(_WRIST[1], _WRIST[0]) - (rise - bend) - lift
    angles = np.array([pan, lift, elbow, pitch - lift - elbow, yaw + pan + _ROLL_ZERO])
    return np.asarray(np.clip(angles, _LOW, _HIGH))
