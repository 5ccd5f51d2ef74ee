"""Motions of LIBERO's hand, the building blocks of the scripted expert's skills.

A motion is a generator of actions; the scene is updated between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

import numpy as np

from proctor.benchmarks.libero.scene import Scene
from proctor.features import Array

Actions = Iterator[Array]

UP = np.array([0.0, 0.0, 1.0])
_STEP_M, _STEP_RAD = 0.05, 0.5  # motion per step for an action of 1
_GAIN, _TURN_GAIN = 2.5, 1.0
"""robosuite's controller starts every step from the hand's current pose and covers about a third of
the requested motion. Requesting more than the error is faster and does not overshoot."""
_TURNED_RAD = 0.1
_SLOWEST_GRIP = 24


class GripperCommand(Enum):
    """Gripper commands; the value is the action."""

    OPEN = -1.0
    CLOSED = 1.0


class GripperMotions:
    """The motions of one episode."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.fingers = GripperCommand.OPEN
        self.aim = np.eye(3)
        """Target orientation of the hand: columns are the fingers' axis, sideways, ahead."""
        self._home: Array | None = None  # the initial orientation
        self._anchor: Array | None = None  # position to hold

    def point(self, ahead: Array, across: Array) -> None:
        """Aim ``ahead``, with the fingers along ``across`` (perpendicular) or against it.

        Of the two, choose the one nearer to the arm's initial pose: its joints are in mid range
        there, and the other may be out of reach.
        """
        if self._home is None:
            self._home = self._scene.hand.rotation
        home = self._home
        ways = [np.stack([a, np.cross(ahead, a), ahead], axis=1) for a in (across, -across)]
        self.aim = max(ways, key=lambda way: float(np.sum(way * home)))

    def point_down(self, across: Array) -> None:
        """Aim down, with the fingers along the horizontal part of ``across`` or against it."""
        level = np.array([across[0], across[1], 0.0])
        self.point(-UP, level / np.linalg.norm(level))

    def go(self, target: Array, *, within: float = 0.01, patience: int = 60) -> Actions:
        """Move the grip point to ``target``; give up after ``patience`` steps."""
        yield from self.follow(
            lambda: target - self._scene.hand.position, within=within, patience=patience
        )
        if np.linalg.norm(target - self._scene.hand.position) < 2 * within:
            self._anchor = target

    def follow(
        self, error: Callable[[], Array], *, within: float, patience: int, stalled: int = 12
    ) -> Actions:
        """Move by ``error()``, which is evaluated every step, until it is small.

        Give up after ``patience`` steps, or after ``stalled`` steps without progress.
        """
        self._anchor = None
        best, since = np.inf, 0
        for _ in range(patience):
            gap = error()
            turn = rotation_between(self._scene.hand.rotation, self.aim)
            length, angle = float(np.linalg.norm(gap)), float(np.linalg.norm(turn))
            if length < within and angle < _TURNED_RAD:
                return
            left = length + 0.1 * angle
            best, since = (left, 0) if left < best - 0.002 else (best, since + 1)
            if since > stalled:
                return
            yield self._action(gap, turn)

    def set(self, fingers: GripperCommand) -> Actions:
        """Open or close the fingers; hold the position until they have stopped."""
        self.fingers = fingers
        gap = np.inf
        for step in range(_SLOWEST_GRIP):
            now = self._scene.hand.joint
            if step > 3 and abs(now - gap) < 5e-4:
                return
            gap = now
            yield from self.stay(1)

    def stay(self, steps: int) -> Actions:
        """Hold the position for ``steps`` steps, so that moving objects come to rest."""
        if self._anchor is None:
            self._anchor = self._scene.hand.position
        for _ in range(steps):
            turn = rotation_between(self._scene.hand.rotation, self.aim)
            yield self._action(self._anchor - self._scene.hand.position, turn)

    def _action(self, gap: Array, turn: Array) -> Array:
        move = gap * _GAIN / _STEP_M
        move /= max(np.abs(move).max(), 1.0)  # slower, but in the same direction
        turned = np.clip(turn * _TURN_GAIN / _STEP_RAD, -1.0, 1.0)
        return np.concatenate([move, turned, [self.fingers.value]])


def rotation_between(now: Array, wanted: Array) -> Array:
    """Return the rotation vector, in the world frame, from one orientation to another."""
    matrix = wanted @ now.T
    axis = np.array(
        [matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]]
    )
    sine = np.linalg.norm(axis) / 2
    angle = np.arctan2(sine, (np.trace(matrix) - 1) / 2)
    return np.asarray(axis / (2 * sine) * angle) if sine > 1e-9 else np.zeros(3)


def rotate_about_vertical(vector: Array, angle: float) -> Array:
    """Return ``vector`` rotated by ``angle`` about the vertical axis."""
    cos, sin = np.cos(angle), np.sin(angle)
    x, y, z = vector
    return np.array([cos * x - sin * y, sin * x + cos * y, z])
