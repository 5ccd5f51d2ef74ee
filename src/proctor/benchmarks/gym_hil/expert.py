"""Scripted expert of the pick: above the cube, down, close the gripper, lift.

The observation shows the gripper's command and not its fingers, so the expert counts the steps of
closing. Everything else follows from the observation: the expert can take over in any state.
"""

from __future__ import annotations

import numpy as np

from proctor.features import ENVIRONMENT_STATE, STATE, Array, Observation

OPEN, STAY, CLOSE = 0.0, 1.0, 2.0
"""Values of the gripper's action. gym_hil's own controllers call 2 "open", but it closes."""
_STEP_M = 0.025
_HOVER_M = 0.06
"""Height of the hand above the cube on the way to it."""
_ALIGNED_M, _AT_CUBE_M, _LOST_M = 0.015, 0.018, 0.035
_GAIN = 0.6
"""Share of the error that one action corrects: the hand lags behind its target."""
_CLOSING_STEPS = 4


class PickExpert:
    """Expert policy: observation -> action, float32 [4]."""

    def __init__(self) -> None:
        self._closed_for = 0

    def __call__(self, observation: Observation) -> Array:
        """Return the next action."""
        state = np.asarray(observation[STATE], dtype=np.float64)
        cube = np.asarray(observation[ENVIRONMENT_STATE], dtype=np.float64)
        error = cube - state[15:18]
        is_closed = state[14] > 127
        if is_closed and np.linalg.norm(error) > _LOST_M:
            self._closed_for = 0
            return _action(np.array([0.0, 0.0, _STEP_M]), OPEN)
        if is_closed:
            self._closed_for += 1
            if self._closed_for >= _CLOSING_STEPS:
                return _action(np.array([0.0, 0.0, 2 * _STEP_M]), STAY)
            return _action(error / 2, STAY)
        self._closed_for = 0
        if np.linalg.norm(error) < _AT_CUBE_M:
            return _action(error / 2, CLOSE)
        if np.linalg.norm(error[:2]) > _ALIGNED_M:
            error[2] += _HOVER_M
        return _action(error, STAY)


def _action(motion_m: Array, gripper: float) -> Array:
    """Return the action that moves the hand by a share of ``motion_m``."""
    moved = np.clip(motion_m * (_GAIN / _STEP_M), -1.0, 1.0)
    return np.array([*moved, gripper], dtype=np.float32)
