"""LIBERO-plus's 500 initial poses of the robot's joints.

Pose N is LIBERO's default plus a random direction of the seven joints, of length 0.1 rad for N up
to 100, 0.2 rad up to 200, and so on to 0.5 rad. LIBERO-plus drew them once, with numpy's generator
seeded with 42, and wrote them down with eight digits.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from proctor.features import Array

N_POSES = 500
_DEFAULT = np.array([0, -1.61037389e-01, 0, -2.44459747, 0, 2.22675220, np.pi / 4])
_PER_LENGTH = 100
_LENGTHS_RAD = (0.1, 0.2, 0.3, 0.4, 0.5)
_DIGITS = 8


@cache
def _poses() -> Array:
    draw, rows = np.random.RandomState(42), []
    for number in range(N_POSES):
        direction = draw.randn(len(_DEFAULT))
        direction = direction / np.linalg.norm(direction)
        pose = _DEFAULT + direction * _LENGTHS_RAD[number // _PER_LENGTH]
        rows.append([round(float(angle), _DIGITS) for angle in pose])
    return np.array(rows)


def init_pose(number: int) -> Array:
    """Return initial pose ``number`` (1 to 500) of the seven joints, in radians."""
    return np.array(_poses()[number - 1])
