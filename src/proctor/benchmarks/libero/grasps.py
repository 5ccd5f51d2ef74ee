"""Where the scripted expert takes hold of LIBERO's objects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proctor.benchmarks.libero.gripper_motions import UP
from proctor.benchmarks.libero.scene import Scene, SceneObject
from proctor.features import Array

MAX_WIDTH_M = 0.07
"""The fingers open to 0.08; a centimetre is left for the error of the approach."""
_TIP_M = 0.012
"""How far the finger tips reach past the grip point."""
_HOLD_DEPTH_M = 0.035
"""How far below an object's top it is held: deep enough to be firm, above the table's clutter."""


_PALM_ABOVE_M, _PALM_THICKNESS_M = 0.08, 0.06
"""The hand above the fingers: 0.2 m along their axis, and how thick."""


@dataclass(frozen=True)
class RimGrasp:
    """An open vessel too wide for the fingers: held by its wall, one finger inside.

    Lengths in metres: the wall's circle at the height of the grip, from the vessel's top to the
    grip, and from the origin of its body to the circle's centre (a mug's handle pulls it aside).
    """

    radius: float
    depth: float
    aside: float = 0.0
    """Along the body's own x axis; the handle is on the other side."""


@dataclass(frozen=True)
class PointGrasp:
    """The one place where an object can be held, and the axis to close along: in its own frame."""

    point: tuple[float, float, float]
    across: tuple[float, float, float]


# Read off the boxes that the objects' collision models are made of, slice by slice.
SPECIAL_GRASPS: dict[str, RimGrasp | PointGrasp] = {
    # The wall leans outwards: near the top the fingers slip off, so they go down to mid height.
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
"""What fits between the fingers, whole."""


@dataclass(frozen=True)
class Grasp:
    """A place for the grip point, and the axis that the fingers close along."""

    point: Array
    across: Array


def choose_grasp(scene: Scene, name: str, attempt: int, along: Array | None = None) -> Grasp:
    """Return where to take hold of an object as it stands now; other attempts, other places.

    Where there is a choice, the fingers are to close ``along`` an axis.
    """
    hold = SPECIAL_GRASPS.get(scene.problem.category_of[name])
    if isinstance(hold, RimGrasp):
        return _on_the_rim(scene, name, hold, attempt, along)
    if isinstance(hold, PointGrasp):
        part = scene[name]
        return Grasp(part.position + part.rotation @ hold.point, part.rotation @ hold.across)
    return _across_the_box(scene, name, attempt)


def _across_the_box(scene: Scene, name: str, attempt: int) -> Grasp:
    """Hold the box around an object across the side that fits between the fingers."""
    part = scene[name]
    low, high = part.bounds
    point = part.centre.copy()
    point[2] = max(high[2] - _HOLD_DEPTH_M, low[2] + _TIP_M) - 0.005 * (attempt % 3)
    point[2] = max(point[2], low[2] + 0.006)
    sides = sorted(_level_sides(part), key=lambda side: side[0])
    fitting = [axis for width, axis in sides if width < MAX_WIDTH_M] or [sides[0][1]]
    # Of two sides that fit, the one to which the hand need not turn.
    if attempt == 0 and len(fitting) == 2:
        fitting.sort(key=lambda axis: -abs(axis @ scene.hand.rotation[:, 0]))
    return Grasp(point, fitting[attempt % len(fitting)])


def _level_sides(part: SceneObject) -> list[tuple[float, Array]]:
    """Return width and axis of the two sides of a part's box that lie level."""
    axes = part.rotation.T  # rows
    upright = int(np.argmax(np.abs(axes @ UP)))
    width = part.high - part.low
    return [(float(width[i]), axes[i]) for i in range(3) if i != upright]


def long_side(part: SceneObject) -> Array | None:
    """Return the axis of the longer level side of a part's box, if one is clearly longer."""
    (short, _), (long, axis) = sorted(_level_sides(part), key=lambda side: side[0])
    return axis if long > 1.5 * short else None


def _on_the_rim(scene: Scene, name: str, rim: RimGrasp, attempt: int, along: Array | None) -> Grasp:
    """Hold a vessel's wall where there is most room for the finger outside."""
    part, top = scene[name], scene[name].bounds[1][2]
    centre = part.position + rim.aside * part.rotation[:, 0]
    angles = np.arange(16) * np.pi / 8
    directions = np.stack([np.cos(angles), np.sin(angles), np.zeros(16)], axis=1)
    away_from_handle = directions @ part.rotation[:, 0] * np.sign(rim.aside)
    directions = directions[away_from_handle > -0.5]
    points = centre + directions * rim.radius
    points[:, 2] = top - rim.depth
    rooms = [_room(scene, name, Grasp(*pair)) for pair in zip(points, directions, strict=True)]
    liking = np.minimum(rooms, 0.04) + 0.01 * np.abs(directions @ scene.hand.rotation[:, 0])
    if along is not None:
        liking += 0.03 * np.abs(directions @ along)
    best = np.argsort(-liking, kind="stable")[min(attempt, 3)]
    return Grasp(points[best], directions[best])


def _room(scene: Scene, name: str, grasp: Grasp) -> float:
    """Return how far the outer finger and the palm would be from the nearest other thing."""
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
