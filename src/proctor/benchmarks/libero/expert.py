"""Scripted expert of LIBERO: it uses the privileged state and achieves the BDDL file's goal."""

from __future__ import annotations

import numpy as np

from proctor.benchmarks.libero.fixtures import (
    KNOBS,
    Drawer,
    close_drawer,
    is_drawer,
    is_on,
    open_drawer,
    turn_knob_on,
)
from proctor.benchmarks.libero.grasps import BOXES, SPECIAL_GRASPS, Grasp, choose_grasp, long_side
from proctor.benchmarks.libero.gripper_motions import (
    UP,
    Actions,
    GripperCommand,
    GripperMotions,
    rotate_about_vertical,
)
from proctor.benchmarks.libero.problem import Goal, Problem, Relation
from proctor.benchmarks.libero.scene import Scene
from proctor.features import ENVIRONMENT_STATE, Array, Observation

_CLEAR_M = 0.04
_LIFT_M = 0.08
_ROOFED = {"microwave"}
"""Containers with a roof: the expert lowers objects from above, so it cannot fill these."""
_SPREAD_M = 0.095
_HOME_M, _REACH_M = 0.45, 0.8
"""Distance of the grip point from the robot's base, along the table: at first, and at most with the
hand pointing down. Farther away the hand tilts, and the stretched arm may not come back."""
_MARGIN_M = 0.015
_ON = Relation.ON
_ORDER = {
    Relation.TURN_ON: 0,
    Relation.TURN_OFF: 0,
    Relation.OPEN: 1,
    Relation.IN: 2,
    Relation.ON: 2,
    Relation.CLOSE: 3,
}
"""Order of goals: a drawer is opened before an object is put into it, and closed afterwards."""


def has_skills(problem: Problem) -> bool:
    """Whether the expert has a skill for every goal of a task."""
    return all(_has_skill(problem, goal) for goal in problem.goals)


def _has_skill(problem: Problem, goal: Goal) -> bool:
    category = problem.category_of.get(goal.subject, "")
    if goal.relation in (Relation.OPEN, Relation.CLOSE):
        return is_drawer(problem, goal.subject)
    if goal.relation is Relation.TURN_ON:
        return category in KNOBS
    if goal.place is None or not (category in SPECIAL_GRASPS or category in BOXES):
        return False
    if is_drawer(problem, goal.place):
        return goal.place in problem.open_at_first  # a drawer opened later blocks the hand
    return problem.category_of.get(problem.owner_of.get(goal.place, ""), "") not in _ROOFED


class LiberoExpert:
    """The script of one episode."""

    def __init__(self, problem: Problem) -> None:
        self._scene = Scene(problem)
        self._hand = GripperMotions(self._scene)
        self._script = self._run(problem)

    def __call__(self, observation: Observation) -> Array:
        """Return the next action."""
        self._scene.update(observation[ENVIRONMENT_STATE])
        return next(self._script)

    def _run(self, problem: Problem) -> Actions:
        self._base = self._scene.hand.position - [_HOME_M, 0.0, 0.0]
        while True:
            for goal in sorted(problem.goals, key=lambda goal: _ORDER[goal.relation]):
                yield from self._achieve(goal)
            yield from self._hand.stay(1)

    def _achieve(self, goal: Goal) -> Actions:
        """Achieve one goal, unless it holds already."""
        scene, hand = self._scene, self._hand
        if goal.relation is Relation.OPEN:
            if not Drawer(scene, goal.subject).is_open:
                yield from open_drawer(scene, hand, goal.subject)
        elif goal.relation is Relation.CLOSE:
            if not Drawer(scene, goal.subject).is_closed:
                yield from close_drawer(scene, hand, goal.subject)
        elif goal.relation is Relation.TURN_ON and not is_on(scene, goal.subject):
            yield from turn_knob_on(scene, hand, goal.subject)
        elif goal.place is not None and not self._is_there(goal.subject, goal.place):
            yield from self._bring(goal.subject, goal.place, goal.relation)

    def _is_there(self, name: str, place: str) -> bool:
        """Whether an object seems to be in or on its place."""
        low, high = self._scene[place].bounds
        position = self._scene[name].position
        half = (high - low)[:2] / 2 if place in self._scene.problem.owner_of else 0.03
        level = bool((np.abs(position - self._scene[place].centre)[:2] < half).all())
        return level and bool(low[2] - 0.02 < position[2] < high[2] + 0.06)

    def _bring(self, name: str, place: str, relation: Relation) -> Actions:
        scene, hand = self._scene, self._hand
        along = None
        if is_drawer(scene.problem, place):
            # A drawer has room for the fingers lengthwise only.
            along = np.cross(UP, Drawer(scene, place).outwards)
        for attempt in range(10):
            before = scene[name].position[2]
            yield from self._pick(name, choose_grasp(scene, name, attempt, along))
            if scene[name].position[2] > before + _LIFT_M / 4:  # a plate hangs down from its rim
                yield from self._place(name, place, relation)
                return
            yield from hand.set(GripperCommand.OPEN)
            yield from hand.stay(5)

    def _pick(self, name: str, grasp: Grasp) -> Actions:
        """Move above the object, descend, close the gripper, lift."""
        scene, hand = self._scene, self._hand
        hand.fingers = GripperCommand.OPEN
        hand.point_down(grasp.across)
        start = scene.hand.position
        top = scene.top_between(start, grasp.point, 0.05)
        height = max(top + _CLEAR_M, grasp.point[2] + 0.06)
        if start[2] < height - 0.05:
            yield from hand.go(np.array([*start[:2], height]), within=0.03)
        yield from hand.go(np.array([*grasp.point[:2], height]), within=0.015)
        yield from hand.go(grasp.point, within=0.006, patience=40)
        yield from hand.set(GripperCommand.CLOSED)
        yield from hand.go(scene.hand.position + _LIFT_M * UP, within=0.02, patience=20)

    def _place(self, name: str, place: str, relation: Relation) -> Actions:
        """Carry the held object over its place, lower it along the normal, release, retreat."""
        scene, hand = self._scene, self._hand
        region, start = scene[place], scene[name].position
        below = start[2] - scene[name].bounds[0][2]
        normal = region.rotation[:, np.argmax(np.abs(region.rotation[2]))]
        normal = normal * np.sign(normal[2])
        surface = region.bounds[1][2]
        x, y = self._target(name, place)
        if relation is Relation.IN:
            self._align(name, long_side(region))
            rest = np.array([x, y, surface - 0.03])
        else:
            rest = np.array([x, y, surface + below + 0.003])
        top = max(scene.top_between(start, rest, 0.08, ignored=name), surface)
        travel = top + below + _CLEAR_M
        over = rest + normal * (travel - rest[2]) / normal[2]
        yield from self._carry(name, np.array([*start[:2], travel]), within=0.03)
        yield from self._carry(name, over, within=0.015)
        yield from self._carry(name, rest, within=0.006, stalled=3)
        yield from hand.set(GripperCommand.OPEN)
        yield from hand.go(scene.hand.position + 0.08 * UP, within=0.02, patience=20)

    def _target(self, name: str, place: str) -> Array:
        """Return the target position of an object: the centre, or beside other objects."""
        scene = self._scene
        if is_drawer(scene.problem, place):
            return Drawer(scene, place).opening[:2]
        sharing = [g.subject for g in scene.problem.goals if (g.relation, g.place) == (_ON, place)]
        centre = scene[place].centre
        if name not in sharing or len(sharing) == 1:
            return centre[:2]
        aside = sharing.index(name) - (len(sharing) - 1) / 2
        across = long_side(scene[name])
        axis = UP[[1, 2, 0]] if across is None else np.cross(across, UP)
        ahead = (centre - self._base) * [1.0, 1.0, 0.0]
        distance = np.linalg.norm(ahead)
        if distance + abs(aside * _SPREAD_M * (axis @ ahead)) / distance > _REACH_M:
            # Side by side as the robot sees them, and at the near edge of the place.
            ahead /= distance
            self._align(name, ahead)
            self._hand.point_down(self._hand.aim[:, 0])
            low, high = scene[place].bounds
            room = float((high - low)[:2].min()) / 2 - _MARGIN_M
            centre = centre - np.clip(distance - _REACH_M, 0.0, room) * ahead
            axis = np.cross(UP, ahead)
        return np.asarray(centre + aside * _SPREAD_M * axis)[:2]

    def _align(self, name: str, lengthwise: Array | None) -> None:
        """Rotate the hand so that the held object's long side is along ``lengthwise``."""
        mine = long_side(self._scene[name])
        if mine is None or lengthwise is None:
            return
        angle = np.arctan2(
            mine[0] * lengthwise[1] - mine[1] * lengthwise[0], mine[:2] @ lengthwise[:2]
        )
        angle = (angle + np.pi / 2) % np.pi - np.pi / 2
        self._hand.aim = np.stack(
            [rotate_about_vertical(axis, angle) for axis in self._hand.aim.T], axis=1
        )

    def _carry(self, name: str, target: Array, *, within: float, stalled: int = 12) -> Actions:
        """Move the hand until the origin of the held object is at ``target``."""
        yield from self._hand.follow(
            lambda: target - self._scene[name].position,
            within=within,
            patience=80,
            stalled=stalled,
        )
