"""Conversion between ALOHA's joints and pi0's convention: flipped signs, grippers as angles.

LeRobot calls it ``adapt_to_pi_aloha``. The constants are those of the Interbotix arms.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

FLIPPED, GRIPPERS = (1, 2, 8, 9), (6, 13)
_LINEAR = (0.01844, 0.05800)
"""Metres between the fingers, closed and open."""
_ANGLE = (0.4, 1.5)
"""Angle of the gripper's motor, closed and open, in radians."""
_JOINT = (-0.6213, 1.4910)
"""Radians of the leader's gripper, closed and open."""
_ARM, _HORN = 0.036, 0.022


def decode_state(state: Tensor) -> Tensor:
    """Return a state [B, 14] in the network's convention."""
    return _changed(state, _linear_to_angle)


def decode_actions(actions: Tensor) -> Tensor:
    """Return a dataset's actions [B, T, 14] in the network's convention."""
    return _changed(actions, lambda x: _to_unit(_from_unit(x, _JOINT), _ANGLE))


def encode_actions(actions: Tensor) -> Tensor:
    """Return the network's actions [B, T, 14] in the robot's convention."""
    return _changed(actions, lambda x: _to_unit(_from_unit(x, _ANGLE), _JOINT))


def _changed(values: Tensor, gripper: Callable[[Tensor], Tensor]) -> Tensor:
    columns = list(values.unbind(-1))
    for number in FLIPPED:
        columns[number] = -columns[number]
    for number in GRIPPERS:
        columns[number] = gripper(columns[number])
    return torch.stack(columns, -1)


def _linear_to_angle(value: Tensor) -> Tensor:
    opening = _from_unit(value, _LINEAR)
    sine = (_HORN**2 + opening**2 - _ARM**2) / (2 * _HORN * opening)
    return _to_unit(torch.arcsin(sine.clamp(-1.0, 1.0)), _ANGLE)


def _to_unit(value: Tensor, span: tuple[float, float]) -> Tensor:
    return (value - span[0]) / (span[1] - span[0])


def _from_unit(value: Tensor, span: tuple[float, float]) -> Tensor:
    return value * (span[1] - span[0]) + span[0]
