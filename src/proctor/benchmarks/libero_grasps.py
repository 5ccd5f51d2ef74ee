"""Where the scripted expert takes hold of LIBERO's objects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proctor.benchmarks.libero_hand import UP
from proctor.benchmarks.libero_scene import Part, Scene
from proctor.types import Array

WIDEST_M = 0.07
"""The fingers open to 0.08; a centimetre is left for the error of the approach."""
_TIP_M = 0.012
"""How far the finger tips reach past the grip point."""
_HOLD_DEPTH_M = 0.035
"""How far below an object's top it is held: deep enough to be firm, above the table's clutter."""


@dataclass(frozen=True)
class Rim:
    """An open vessel too wide for the fingers: held by its wall, one finger inside.

    Lengths in metres: of the rim's circle, and from the vessel's top to the grip point.
    """

    radius: float
    depth: float


RIMS: dict[str, Rim] = {
    # radius: measured from the collision meshes, where the wall is at the grip's height
    "akita_black_bowl": Rim(radius=0.048, depth=0.015),
    "white_bowl": Rim(radius=0.048, depth=0.015),
}


@dataclass(frozen=True)
class Grasp:
    """A place for the grip point, and the axis that the fingers close along."""

    point: Array
    across: Array


def choose_grasp(scene: Scene, name: str, attempt: int) -> Grasp:
    """Return where to take hold of an object as it stands now; other attempts, other places."""
    rim = RIMS.get(scene.problem.category_of[name])
    if rim is not None:
        return _on_the_rim(scene, name, rim, attempt)
    return _across_the_box(scene, name, attempt)


def _across_the_box(scene: Scene, name: str, attempt: int) -> Grasp:
    """Hold the box around an object across the side that fits between the fingers."""
    part = scene[name]
    low, high = part.bounds
    point = part.centre.copy()
    point[2] = max(high[2] - _HOLD_DEPTH_M, low[2] + _TIP_M) - 0.005 * (attempt % 3)
    point[2] = max(point[2], low[2] + 0.006)
    sides = sorted(_level_sides(part), key=lambda side: side[0])
    fitting = [axis for width, axis in sides if width < WIDEST_M] or [sides[0][1]]
    # Of two sides that fit, the one to which the hand need not turn.
    if attempt == 0 and len(fitting) == 2:
        fitting.sort(key=lambda axis: -abs(axis @ scene.hand.rotation[:, 0]))
    return Grasp(point, fitting[attempt % len(fitting)])


def _level_sides(part: Part) -> list[tuple[float, Array]]:
    """Return width and axis of the two sides of a part's box that lie level."""
    axes = part.rotation.T  # rows
    upright = int(np.argmax(np.abs(axes @ UP)))
    width = part.high - part.low
    return [(float(width[i]), axes[i]) for i in range(3) if i != upright]


def _on_the_rim(scene: Scene, name: str, rim: Rim, attempt: int) -> Grasp:
    """Hold a vessel's wall where there is most room for the finger outside."""
    part = scene[name]
    centre, top = part.centre, part.bounds[1][2]
    angles = np.arange(16) * np.pi / 8
    directions = np.stack([np.cos(angles), np.sin(angles), np.zeros(16)], axis=1)
    rooms = [_room(scene, name, centre + d * (rim.radius + 0.045), top) for d in directions]
    turns = np.abs(directions @ scene.hand.rotation[:, 0])
    order = np.argsort([-min(room, 0.04) - 0.01 * turn for room, turn in zip(rooms, turns)])
    direction = directions[order[min(attempt, 3)]]
    point = centre + direction * rim.radius
    point[2] = top - rim.depth
    return Grasp(point, direction)


def _room(scene: Scene, name: str, point: Array, height: float) -> float:
    """Return how far ``point`` is from the nearest thing that stands as high as ``height``."""
    room = np.inf
    for other in scene.problem.category_of:
        low, high = scene[other].bounds
        if other != name and high[2] > height - 0.03:
            outside = np.maximum(low[:2] - point[:2], point[:2] - high[:2])
            room = min(room, float(outside.max()))
    for region in scene.problem.owner_of:
        low, high = scene[region].bounds
        if (low < scene[name].centre).all() and (scene[name].centre < high).all():
            room = min(room, float(np.minimum(point[:2] - low[:2], high[:2] - point[:2]).min()))
    return room
