"""X-VLA's pose of 20 numbers: conversion to and from LIBERO's states and actions.

    xyz, first and second column of the rotation, gripper (10), and the same of a second arm

LIBERO has one arm: the second arm's numbers are zero in states and ignored in actions.
"""

from __future__ import annotations

import mujoco
import numpy as np

from proctor.benchmarks.libero.scene import POSE_NUMBERS
from proctor.features import Array

_CLOSED = 0.5
"""Threshold above which a gripper closes; LIBERO's own gripper commands are -1 and 1."""
_NEVER_ZERO = 1e-6


def encode_pose(position: Array, matrix: Array) -> Array:
    """Return the pose, float32 [20], of a position and a rotation matrix; the gripper is 0."""
    columns = matrix.reshape(3, 3)[:, :2].T.ravel()
    return np.concatenate([position, columns, np.zeros(POSE_NUMBERS - 9)]).astype(np.float32)


def decode_pose_action(pose: Array) -> Array:
    """Return LIBERO's action (xyz, rotation vector, gripper) of a pose [20].

    The rotation's columns are orthonormalised, the first one first.
    """
    first = _unit(pose[3:6].astype(np.float64))
    second = pose[6:9].astype(np.float64)
    second = _unit(second - first * (first @ second))
    quaternion, turned = np.zeros(4), np.zeros(3)
    mujoco.mju_mat2Quat(quaternion, np.stack([first, second, np.cross(first, second)], 1).ravel())
    mujoco.mju_quat2Vel(turned, quaternion, 1.0)
    gripper = 1.0 if pose[9] > _CLOSED else -1.0
    return np.array([*pose[:3], *turned, gripper], np.float32)


def _unit(vector: Array) -> Array:
    return np.asarray(vector / (np.linalg.norm(vector) + _NEVER_ZERO))
