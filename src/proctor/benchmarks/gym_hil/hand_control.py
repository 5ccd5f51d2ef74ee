"""Operational-space control of the Panda's hand: gym_hil's controller at less cost.

The numbers are those of ``gym_hil.controllers.opspace``, bit for bit: ``tests/sim/test_gym_hil.py``
compares them. gym_hil makes its gains and Jacobians anew in each of the 50 physics steps of an
action, and computes quaternions with numpy's scalars. That takes longer than the physics.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import mujoco
import numpy as np

from proctor.features import Array

_GRIPPER_MAX = 255
_STIFFNESS = np.float64(200.0)
_DAMPING = 2 * np.sqrt(_STIFFNESS)
_NULL_STIFFNESS = np.float64(0.5)
_NULL_DAMPING = 2 * np.sqrt(_NULL_STIFFNESS)
_SINGULAR = 1e-2
"""Determinant below which the pseudo-inverse replaces the inverse."""
_TINY = 1e-10


class Quaternion(NamedTuple):
    """A rotation, w first."""

    w: float
    x: float
    y: float
    z: float


class HandController:
    """Moves the hand of one of gym_hil's environments."""

    def __init__(self, env: Any) -> None:
        self._model, self._data = env.model, env.data
        self._joints: Array = env._panda_dof_ids
        self._motors: Array = env._panda_ctrl_ids
        self._gripper: int = env._gripper_ctrl_id
        self._site: int = env._pinch_site_id
        self._bounds: Array = env._cartesian_bounds
        self._home: Array = env._home_position
        self._n_substeps: int = env._n_substeps
        size = self._model.nv
        self._jacobians = np.zeros((3, size)), np.zeros((3, size))
        self._inertia = np.zeros((size, size))
        self._identity = np.eye(len(self._joints))

    def apply(self, action: Array) -> None:
        """Execute an action of the base environment: motion in metres, rotation, gripper."""
        data = self._data
        data.mocap_pos[0] = np.clip(data.mocap_pos[0] + action[:3], *self._bounds)
        gripper = data.ctrl[self._gripper] / _GRIPPER_MAX
        data.ctrl[self._gripper] = np.clip(gripper + action[6], 0.0, 1.0) * _GRIPPER_MAX
        target = Quaternion(*data.mocap_quat[0].tolist())
        for _ in range(self._n_substeps):
            data.ctrl[self._motors] = self._torques(target)
            mujoco.mj_step(self._model, data)

    def _torques(self, target: Quaternion) -> Array:
        """Return the torques that pull the hand to the mocap body's pose."""
        data, joints = self._data, self._joints
        velocity = data.qvel[joints]
        linear, angular = self._jacobians
        mujoco.mj_jacSite(self._model, data, linear, angular, self._site)
        linear, angular = linear[:, joints], angular[:, joints]
        jacobian = np.concatenate([linear, angular], axis=0)
        force = (data.site_xpos[self._site] - data.mocap_pos[0]) * -_STIFFNESS
        force += (linear @ velocity) * -_DAMPING
        turn = np.array(_rotation_error(data.site_xmat[self._site].tolist(), target))
        turn *= -_STIFFNESS
        turn += (angular @ velocity) * -_DAMPING
        mujoco.mj_fullM(self._model, self._inertia, data.qM)
        inverse = np.linalg.inv(self._inertia[joints, :][:, joints])
        task_inertia = _inverted(jacobian @ inverse @ jacobian.T)
        torques: Array = jacobian.T @ task_inertia @ np.concatenate([force, turn], axis=0)
        posture = (data.qpos[joints] - self._home) * -_NULL_STIFFNESS
        posture += velocity * -_NULL_DAMPING
        null_space = inverse @ jacobian.T @ task_inertia
        torques += (self._identity - jacobian.T @ null_space.T) @ posture
        torques += data.qfrc_bias[joints]
        return torques


def _inverted(matrix: Array) -> Array:
    if abs(np.linalg.det(matrix)) >= _SINGULAR:
        inverse: Array = np.linalg.inv(matrix)
        return inverse
    return np.linalg.pinv(matrix, rcond=_SINGULAR)


def _rotation_error(matrix: list[float], target: Quaternion) -> tuple[float, float, float]:
    """Return the rotation vector from ``target`` to the rotation matrix, flat and row by row."""
    now = _quaternion(matrix)
    if now.w * target.w + now.x * target.x + now.y * target.y + now.z * target.z < 0.0:
        now = Quaternion(-now.w, -now.x, -now.y, -now.z)
    return _rotation_vector(_difference(target, now))


def _quaternion(matrix: list[float]) -> Quaternion:
    """Return the quaternion of a rotation matrix, by the largest of its four divisors."""
    xx, xy, xz, yx, yy, yz, zx, zy, zz = matrix
    trace = xx + yy + zz
    if trace > 0:
        s = 2.0 * math.sqrt(trace + 1.0)
        return Quaternion(0.25 * s, (zy - yz) / s, (xz - zx) / s, (yx - xy) / s)
    if xx > yy and xx > zz:
        s = 2.0 * math.sqrt(1.0 + xx - yy - zz)
        return Quaternion((zy - yz) / s, 0.25 * s, (xy + yx) / s, (xz + zx) / s)
    if yy > zz:
        s = 2.0 * math.sqrt(1.0 + yy - xx - zz)
        return Quaternion((xz - zx) / s, (xy + yx) / s, 0.25 * s, (yz + zy) / s)
    s = 2.0 * math.sqrt(1.0 + zz - xx - yy)
    return Quaternion((yx - xy) / s, (xz + zx) / s, (yz + zy) / s, 0.25 * s)


def _difference(source: Quaternion, target: Quaternion) -> Quaternion:
    """Return target * source^-1; the inverse of a unit quaternion is its conjugate."""
    w1, x1, y1, z1 = target
    w2, x2, y2, z2 = source.w, -source.x, -source.y, -source.z
    return Quaternion(
        w1 * w2 - x1 * x2 - y1 * y2 - z1 * z2,
        w1 * x2 + x1 * w2 + y1 * z2 - z1 * y2,
        w1 * y2 - x1 * z2 + y1 * w2 + z1 * x2,
        w1 * z2 + x1 * y2 - y1 * x2 + z1 * w2,
    )


def _rotation_vector(rotation: Quaternion) -> tuple[float, float, float]:
    """Return the axis of a rotation times its angle."""
    w, x, y, z = rotation
    norm = math.sqrt(w * w + x * x + y * y + z * z)
    if norm < _TINY:
        return 0.0, 0.0, 0.0
    w, x, y, z = w / norm, x / norm, y / norm, z / norm
    angle = float(2.0 * np.arccos(min(max(w, -1.0), 1.0)))  # math.acos may differ in the last bit
    sine = math.sqrt(1.0 - w * w) if abs(w) <= 1.0 else math.nan
    if sine < _TINY:
        return angle * x, angle * y, angle * z
    return angle * (x / sine), angle * (y / sine), angle * (z / sine)
