"""Motions that change gradually with the state, of which the smooth experts consist.

Positions are in metres, actions in [-1, 1]: the hand's motion [3] and the fingers' effort, where -1
opens and 1 closes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from proctor.features import Array

_GAIN = 20.0
"""Motion for each metre of distance: full speed from 5 cm on."""
OPEN = -1.0


def ramp(value: float, low: float, high: float) -> float:
    """Return 0 up to ``low``, 1 from ``high`` on, and a straight line between them."""
    return min(max((value - low) / (high - low), 0.0), 1.0)


def blend(weight: float, first: Array | float, second: Array | float) -> Array:
    """Return ``first`` for weight 0, ``second`` for weight 1, and a mixture between them."""
    return np.asarray((1 - weight) * first + weight * second)


def xyz(x: float, y: float, z: float) -> Array:
    """Return a position or an offset."""
    return np.array((x, y, z))


def apart(first: Array, second: Array) -> float:
    """Return the distance of two positions in the horizontal plane."""
    return float(np.hypot(first[0] - second[0], first[1] - second[1]))


def move(hand: Array, target: Array, gain: float = _GAIN) -> Array:
    """Return the motion towards ``target``, at full speed while it is far."""
    motion: Array = np.clip(gain * (target - hand), -1.0, 1.0)
    return motion


def funnel(hand: Array, goal: Array, height: float, near: float, far: float) -> Array:
    """Return a target above ``goal`` that is the lower, the nearer the hand is in the plane."""
    return goal + xyz(0, 0, height * ramp(apart(hand, goal), near, far))


def action(motion: Array, effort: Array | float) -> Array:
    """Return the action of a motion and an effort of the fingers."""
    return np.append(motion, effort)


@dataclass(frozen=True)
class Grasp:
    """How to take an object from above."""

    height: float = 0.12
    """Height above the object at which the hand arrives."""
    funnel: tuple[float, float] = (0.015, 0.06)
    """Distances in the plane between which the hand descends to the object."""
    gain: float = _GAIN
    """Motion for each metre of distance in the approach; less overshoots less."""
    too_high: float = 0.02
    """The fingers begin to close when the hand is at most this much above the grasp."""
    closed: float = 0.5
    """Opening of the fingers, of 1, at which they hold the object."""
    opened: float = 0.7
    """Opening from which on they do not hold it."""
    effort: float = 0.8
    centred: tuple[float, float] = (0.03, 0.05)
    """Distances in the plane within which, and beyond which not, the fingers reach the object."""

    def act(self, seen: Array, at: Array, carry: Callable[[Array], Array]) -> Array:
        """Return the action: approach ``at``, close the fingers, and ``carry`` when they hold."""
        hand, fingers = seen[:3], seen[3]
        above, near = hand[2] - at[2], 1 - ramp(apart(hand, at), *self.centred)
        there = near * (1 - ramp(above, self.too_high, self.too_high + 0.02))
        # Closed fingers may have slipped up a little.
        closed = 1 - ramp(fingers, self.closed, self.opened)
        held = closed * near * (1 - ramp(above, self.too_high + 0.02, self.too_high + 0.05))
        approach = move(hand, funnel(hand, at, self.height, *self.funnel), self.gain)
        effort = blend(max(there, held), OPEN, self.effort)
        return action(blend(held, approach, carry(hand)), effort)


def lift_then_move(hand: Array, goal: Array, height: float, near: float, far: float) -> Array:
    """Return the motion up to ``height``, over to ``goal``, and down when nearer than ``near``."""
    motion = move(hand, xyz(goal[0], goal[1], height))
    motion[:2] *= 1 - ramp(height - hand[2], 0.02, 0.06)
    return blend(ramp(apart(hand, goal), near, far), move(hand, goal), motion)
