"""Pose of a fixed camera, and how to change it before a model is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class CameraPose:
    """Position in metres, and orientation as a quaternion w x y z."""

    position: tuple[float, ...]
    quaternion: tuple[float, ...]


MoveCamera: TypeAlias = Callable[[CameraPose], CameraPose]
"""Returns the new pose of a camera."""
