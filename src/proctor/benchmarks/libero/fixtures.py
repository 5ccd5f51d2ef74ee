"""Skills of the scripted expert for LIBERO's fixtures: drawers and the stove's knob."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proctor.benchmarks.libero.gripper_motions import (
    UP,
    Actions,
    GripperCommand,
    GripperMotions,
    rotate_about_vertical,
)
from proctor.benchmarks.libero.problem import Problem
from proctor.benchmarks.libero.scene import Scene
from proctor.features import Array

_CLEAR_M = 0.05


@dataclass(frozen=True)
class DrawerGeometry:
    """Geometry of a cabinet's drawers in the cabinet's frame, and LIBERO's joint thresholds."""

    handle: tuple[float, float, float]
    """Offset from the centre of a drawer's region to the centre of its handle's bar."""
    outwards: tuple[float, float, float]
    open_below: float
    closed_above: float


@dataclass(frozen=True)
class KnobGeometry:
    """Geometry of a stove's knob, which is gripped across its ridge."""

    height: float
    """Height of the grip above the stove's origin."""
    on_above: float


# Both cabinets are one model in two colours. The handles' heights differ by 5 mm; the fingers open
# far wider.
_CABINET = DrawerGeometry(
    (-0.006, -0.113, -0.005), (0.0, -1.0, 0.0), open_below=-0.14, closed_above=0.0
)
DRAWERS = {"wooden_cabinet": _CABINET, "white_cabinet": _CABINET}
KNOBS = {"flat_stove": KnobGeometry(height=0.04, on_above=0.5)}


class Drawer:
    """The current state of one drawer of a cabinet."""

    def __init__(self, scene: Scene, region: str) -> None:
        self._scene, self._region = scene, region
        self._cabinet = scene.problem.owner_of[region]
        self.kind = DRAWERS[scene.problem.category_of[self._cabinet]]

    @property
    def outwards(self) -> Array:
        """Opening direction, in the world frame."""
        return np.asarray(self._scene[self._cabinet].rotation @ self.kind.outwards)

    @property
    def bar(self) -> Array:
        """Centre of the handle, in the world frame."""
        offset = self._scene[self._cabinet].rotation @ self.kind.handle
        return np.asarray(self._scene[self._region].position + offset)

    @property
    def opening(self) -> Array:
        """Where objects can be lowered into the drawer; its centre is partly below the cabinet."""
        return np.asarray(self._scene[self._region].centre + 0.027 * self.outwards)

    @property
    def is_open(self) -> bool:
        """Whether the drawer is open by LIBERO's predicate."""
        return self._scene[self._region].joint < self.kind.open_below

    @property
    def is_closed(self) -> bool:
        """Whether the drawer is closed by LIBERO's predicate."""
        return self._scene[self._region].joint > self.kind.closed_above


def is_drawer(problem: Problem, region: str) -> bool:
    """Whether a region is the inside of a drawer."""
    owner = problem.owner_of.get(region, "")
    return problem.category_of.get(owner) in DRAWERS and region.endswith("_region")


def is_on(scene: Scene, stove: str) -> bool:
    """Whether a stove is on by LIBERO's predicate."""
    return scene[stove].joint >= KNOBS[scene.problem.category_of[stove]].on_above


def open_drawer(scene: Scene, hand: GripperMotions, region: str) -> Actions:
    """Grip the handle's bar from the front, one finger above and one below, and pull."""
    drawer = Drawer(scene, region)
    out = drawer.outwards
    hand.point(-out, UP)
    hand.fingers = GripperCommand.OPEN
    before = drawer.bar + 0.12 * out
    yield from hand.go(np.array([*before[:2], max(scene.hand.position[2], before[2])]), within=0.04)
    yield from hand.go(before, within=0.015)
    yield from hand.go(drawer.bar, within=0.008, patience=40)
    yield from hand.set(GripperCommand.CLOSED)
    for _ in range(80):
        if drawer.is_open:
            break
        yield from hand.go(scene.hand.position + 0.1 * out, patience=1)
    yield from hand.set(GripperCommand.OPEN)
    yield from hand.go(scene.hand.position + 0.06 * out, within=0.02, patience=20)
    yield from hand.go(scene.hand.position + 0.15 * UP, within=0.03)
    hand.point_down(out)
    yield from hand.go(scene.hand.position, within=0.05)  # turn where there is room


def close_drawer(scene: Scene, hand: GripperMotions, region: str) -> Actions:
    """Push the handle with closed fingers, tilted so that the hand clears other handles."""
    drawer = Drawer(scene, region)
    out = drawer.outwards
    hand.point(-(out + UP) / np.sqrt(2), np.cross(UP, out))
    hand.fingers = GripperCommand.CLOSED
    before = drawer.bar + 0.06 * out
    top = max(scene.top_between(scene.hand.position, before, 0.05), before[2]) + _CLEAR_M
    yield from hand.go(np.array([*scene.hand.position[:2], top]), within=0.03)
    yield from hand.go(np.array([*before[:2], top]), within=0.02)
    yield from hand.go(before, within=0.01)
    for _ in range(80):
        if drawer.is_closed:
            return
        yield from hand.go(scene.hand.position - 0.1 * out, patience=1)


def turn_knob_on(scene: Scene, hand: GripperMotions, stove: str) -> Actions:
    """Grip the knob's ridge and rotate the hand."""
    part, knob = scene[stove], KNOBS[scene.problem.category_of[stove]]
    across = rotate_about_vertical(part.rotation[:, 1], part.joint)
    point = part.position + knob.height * UP
    hand.point_down(across)
    hand.fingers = GripperCommand.OPEN
    above = max(scene.top_between(scene.hand.position, point, 0.05), part.bounds[1][2])
    yield from hand.go(np.array([*point[:2], above + _CLEAR_M]), within=0.01)
    yield from hand.go(point, within=0.006, patience=40)
    yield from hand.set(GripperCommand.CLOSED)
    start = hand.aim
    for step in range(60):
        if scene[stove].joint > knob.on_above + 0.1:
            break
        hand.aim = np.stack(
            [rotate_about_vertical(axis, min(0.05 * step, 1.2)) for axis in start.T], axis=1
        )
        yield from hand.stay(1)
    yield from hand.set(GripperCommand.OPEN)
    yield from hand.go(scene.hand.position + 0.1 * UP, within=0.03, patience=30)
