"""What the scripted expert does to LIBERO's fixtures: drawers, and the knob of the stove."""

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
    """How a cabinet's drawers are moved, in the cabinet's frame; joints as LIBERO judges them."""

    handle: tuple[float, float, float]
    """From the middle of a drawer's region to the middle of the bar of its handle."""
    outwards: tuple[float, float, float]
    open_below: float
    closed_above: float


@dataclass(frozen=True)
class KnobGeometry:
    """How a stove's knob is turned: gripped across the ridge on top of it."""

    height: float
    """Of the grip above the knob's origin, which is the stove's."""
    on_above: float


# Both cabinets are one model in two colours. The handle's height differs by 5 mm from drawer to
# drawer; the fingers open far wider than that.
_CABINET = DrawerGeometry(
    (-0.006, -0.113, -0.005), (0.0, -1.0, 0.0), open_below=-0.14, closed_above=0.0
)
DRAWERS = {"wooden_cabinet": _CABINET, "white_cabinet": _CABINET}
KNOBS = {"flat_stove": KnobGeometry(height=0.04, on_above=0.5)}


class Drawer:
    """One drawer of a cabinet, as it stands now."""

    def __init__(self, scene: Scene, region: str) -> None:
        self._scene, self._region = scene, region
        self._cabinet = scene.problem.owner_of[region]
        self.kind = DRAWERS[scene.problem.category_of[self._cabinet]]

    @property
    def outwards(self) -> Array:
        """The way it opens, in the world."""
        return np.asarray(self._scene[self._cabinet].rotation @ self.kind.outwards)

    @property
    def bar(self) -> Array:
        """The middle of the handle, in the world."""
        offset = self._scene[self._cabinet].rotation @ self.kind.handle
        return np.asarray(self._scene[self._region].position + offset)

    @property
    def opening(self) -> Array:
        """Where something can be let down into it: its middle is partly below the cabinet."""
        return np.asarray(self._scene[self._region].centre + 0.027 * self.outwards)

    @property
    def is_open(self) -> bool:
        """Whether LIBERO would call it open."""
        return self._scene[self._region].joint < self.kind.open_below

    @property
    def is_closed(self) -> bool:
        """Whether LIBERO would call it closed."""
        return self._scene[self._region].joint > self.kind.closed_above


def is_drawer(problem: Problem, region: str) -> bool:
    """Say whether a region is the inside of a drawer."""
    owner = problem.owner_of.get(region, "")
    return problem.category_of.get(owner) in DRAWERS and region.endswith("_region")


def is_on(scene: Scene, stove: str) -> bool:
    """Say whether LIBERO would call a stove turned on."""
    return scene[stove].joint >= KNOBS[scene.problem.category_of[stove]].on_above


def open_drawer(scene: Scene, hand: GripperMotions, region: str) -> Actions:
    """Grip the bar of the handle from the front, a finger above and one below, and pull."""
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
    """Push the handle in with closed fingers, leaning so that the hand clears other handles."""
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
    """Grip the ridge of the knob and turn the hand."""
    part, knob = scene[stove], KNOBS[scene.problem.category_of[stove]]
    across = rotate_about_vertical(part.rotation[:, 1], part.joint)
    point = part.position + knob.height * UP
    hand.point_down(across)
    hand.fingers = GripperCommand.OPEN
    top = scene.top_between(scene.hand.position, point, 0.05) + _CLEAR_M
    yield from hand.go(np.array([*point[:2], top]), within=0.01)
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
