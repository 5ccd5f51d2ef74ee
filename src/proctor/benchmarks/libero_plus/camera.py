"""LIBERO-plus's camera perturbation: arithmetic of the main camera's pose.

LIBERO-plus rounds position and quaternion to four digits after each step, and it does so in every
task: the main camera of an unperturbed view is up to 0.05 mm from LIBERO's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proctor.benchmarks.libero.camera_pose import CameraPose
from proctor.features import Array

if TYPE_CHECKING:
    from scipy.spatial.transform import Rotation

_PIVOT = np.array([0.0, 0.0, 0.8])
_DIGITS = 4


@dataclass(frozen=True)
class View:
    """Change of the main camera's pose, in degrees."""

    horizontal: int = 0
    """Orbit about the z axis, counter-clockwise from above."""
    vertical: int = 0
    """Orbit about the y direction through ``_PIVOT``, from the x axis to the z axis."""
    scale: float = 1.0
    """Factor of the distance from ``_PIVOT``."""
    turn: int = 0
    """Rotation in place about z."""
    tilt: int = 0
    """Rotation in place about y."""


def moved_camera(pose: CameraPose, view: View) -> CameraPose:
    """Return the pose of the main camera after ``view``."""
    position = np.array(pose.position)
    quaternion = np.array(pose.quaternion)
    if view.vertical:
        orbit = _about_y(view.vertical)
        position = _rounded(orbit.apply(position - _PIVOT) + _PIVOT)
        quaternion = _turned(orbit, quaternion)
    orbit = _about_z(view.horizontal)
    position = _rounded(orbit.apply(position))
    quaternion = _turned(orbit, quaternion)
    if view.scale != 1.0:
        position = _rounded(_PIVOT + (position - _PIVOT) * view.scale)
    if view.turn:
        quaternion = _turned(_about_z(view.turn), quaternion)
    if view.tilt:
        quaternion = _turned(_about_y(view.tilt), quaternion)
    return CameraPose(tuple(position.tolist()), tuple(quaternion.tolist()))


def _about_y(degrees: int) -> Rotation:
    from scipy.spatial.transform import Rotation

    return Rotation.from_rotvec(np.radians(-degrees) * np.array([0.0, 1.0, 0.0]))


def _about_z(degrees: int) -> Rotation:
    from scipy.spatial.transform import Rotation

    return Rotation.from_euler("z", degrees, degrees=True)


def _turned(rotation: Rotation, quaternion: Array) -> Array:
    """Return the rounded product of ``rotation`` and a quaternion w x y z, which is normalised."""
    from scipy.spatial.transform import Rotation

    w, x, y, z = quaternion
    product = (rotation * Rotation.from_quat([x, y, z, w])).as_quat()
    return _rounded(product[[3, 0, 1, 2]])


def _rounded(numbers: Array) -> Array:
    return np.array([round(float(number), _DIGITS) for number in numbers])
