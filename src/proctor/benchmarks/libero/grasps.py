"""Grasps of LIBERO's objects for the scripted expert."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proctor.benchmarks.libero.gripper_motions import UP
from proctor.benchmarks.libero.scene import Scene, SceneObject
from proctor.features import Array

MAX_WIDTH_M = 0.07
"""Largest width to grasp: the fingers open to 0.08 m, less 1 cm for the approach's error."""
_TIP_M = 0.012
"""How far the finger tips reach past the grip point."""
_HOLD_DEPTH_M = 0.035
"""Depth of a grasp below an object's top: firm, and above other objects on the table."""


_PALM_ABOVE_M, _PALM_THICKNESS_M = 0.08, 0.06
"""The palm's height above the fingers, and its thickness; it is 0.2 m wide along their axis."""


@dataclass(frozen=True)
class RimGrasp:
    """Grasp of an open vessel by its wall, with one finger inside; it is too wide otherwise.

    In metres: radius of the wall at the height of the grip, depth of the grip below the top, and
    offset of the circle's centre from the body's origin (because of a mug's handle).
    """

    radius: float
    depth: float
    aside: float = 0.0
    """Along the body's own x axis; the handle is on the other side."""


@dataclass(frozen=True)
class PointGrasp:
    """Grasp at the only possible point, and its closing axis, in the object's frame."""

    point: tuple[float, float, float]
    across: tuple[float, float, float]


# Measured from the boxes of the objects' collision models, slice by slice.
SPECIAL_GRASPS: dict[str, RimGrasp | PointGrasp] = {
    # The wall is slanted: fingers slip off near the top, so they go down to mid height.
    "akita_black_bowl": RimGrasp(radius=0.0455, depth=0.027),
    # A finger fits under the edge of a plate.
    "plate": RimGrasp(radius=0.063, depth=0.006),
    "porcelain_mug": RimGrasp(radius=0.043, depth=0.03, aside=0.0125),
    "white_yellow_mug": RimGrasp(radius=0.047, depth=0.03, aside=-0.018),
    # Body and handle are wider than the fingers; the knob of the lid is not.
    "moka_pot": PointGrasp(point=(0.0, -0.0015, 0.082), across=(1.0, 0.0, 0.0)),
}


BOXES = {
    *("alphabet_soup", "bbq_sauce", "black_book", "butter", "chocolate_pudding", "cookies"),
    *("cream_cheese", "ketchup", "milk", "orange_juice", "salad_dressing", "tomato_sauce"),
    "wine_bottle",
}
"""Objects that fit between the fingers."""


@dataclass(frozen=True)
class Grasp:
    """Position of the grip point, and axis along which the fingers close."""

    point: Array
    across: Array


def choose_grasp(scene: Scene, name: str, attempt: int, along: Array | None = None) -> Grasp:
    """Return a grasp for an object's current pose; every attempt gives another grasp.

    If there is a choice, the fingers close ``along`` the given axis.
    """
    hold = SPECIAL_GRASPS.get(scene.problem.category_of[name])
    if isinstance(hold, RimGrasp):
        return _on_the_rim(scene, name, hold, attempt, along)
    if isinstance(hold, PointGrasp):
        part = scene[name]
        return Grasp(part.position + part.rotation @ hold.point, part.rotation @ hold.across)
    return _across_the_box(scene, name, attempt)


def _across_the_box(scene: Scene, name: str, attempt: int) -> Grasp:
    """Grasp an object's box across a side that fits between the fingers."""
    part = scene[name]
    low, high = part.bounds
    point = part.centre.copy()
    point[2] = max(high[2] - _HOLD_DEPTH_M, low[2] + _TIP_M) - 0.005 * (attempt % 3)
    point[2] = max(point[2], low[2] + 0.006)
    sides = sorted(_level_sides(part), key=lambda side: side[0])
    fitting = [axis for width, axis in sides if width < MAX_WIDTH_M] or [sides[0][1]]
    # Of two sides that fit, prefer the one that needs less rotation of the hand.
    if attempt == 0 and len(fitting) == 2:
        fitting.sort(key=lambda axis: -abs(axis @ scene.hand.rotation[:, 0]))
    return Grasp(point, fitting[attempt % len(fitting)])


def _level_sides(part: SceneObject) -> list[tuple[float, Array]]:
    """Return width and axis of the two horizontal sides of an object's box."""
    axes = part.rotation.T  # rows
    upright = int(np.argmax(np.abs(axes @ UP)))
    width = part.high - part.low
    return [(float(width[i]), axes[i]) for i in range(3) if i != upright]


def long_side(part: SceneObject) -> Array | None:
    """Return the axis of the longer horizontal side of an object's box, if clearly longer."""
    (short, _), (long, axis) = sorted(_level_sides(part), key=lambda side: side[0])
    return axis if long > 1.5 * short else None


def _on_the_rim(scene: Scene, name: str, rim: RimGrasp, attempt: int, along: Array | None) -> Grasp:
    """Grasp a vessel's wall where the outer finger has most room."""
    part, top = scene[name], scene[name].bounds[1][2]
    centre = part.position + rim.aside * part.rotation[:, 0]
    angles = np.arange(16) * np.pi / 8
    directions = np.stack([np.cos(angles), np.sin(angles), np.zeros(16)], axis=1)
    away_from_handle = directions @ part.rotation[:, 0] * np.sign(rim.aside)
    directions = directions[away_from_handle > -0.5]
    points = centre + directions * rim.radius
    points[:, 2] = top - rim.depth
    rooms = [_room(scene, name, Grasp(*pair)) for pair in zip(points, directions, strict=True)]
    score = np.minimum(rooms, 0.04) + 0.01 * np.abs(directions @ scene.hand.rotation[:, 0])
    if along is not None:
        score += 0.03 * np.abs(directions @ along)
    best = np.argsort(-score, kind="stable")[min(attempt, 3)]
    return Grasp(points[best], directions[best])


def _room(scene: Scene, name: str, grasp: Grasp) -> float:
    """Return the clearance of outer finger and palm to the nearest other object."""
    point, ahead = grasp.point, grasp.across
    finger = point + 0.045 * ahead
    beside = np.array([-ahead[1], ahead[0], 0.0])
    palm = [
        point + along * ahead + across * beside
        for along in (-0.1, -0.05, 0.0, 0.05, 0.1)
        for across in (-_PALM_THICKNESS_M / 2, _PALM_THICKNESS_M / 2)
    ]
    room = np.inf
    for other in scene.problem.part_names:
        low, high = scene[other].bounds
        if other == name:
            continue
        if (low < scene[name].centre).all() and (scene[name].centre < high).all():
            room = min(room, float(np.minimum(finger - low, high - finger)[:2].min()))
            continue
        near = [finger] if high[2] > point[2] else []
        near += palm if high[2] > point[2] + _PALM_ABOVE_M else []
        for spot in near:
            room = min(room, float(np.maximum(low - spot, spot - high)[:2].max()))
    return room
