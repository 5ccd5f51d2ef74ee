"""The scripted expert of LIBERO: it sees where everything is and does what the goal says.

All it knows of a task is the goal in the BDDL file.
"""

from __future__ import annotations

import numpy as np

from proctor.benchmarks.libero_grasps import choose_grasp
from proctor.benchmarks.libero_hand import UP, Actions, Fingers, Hand
from proctor.benchmarks.libero_problem import Goal, Problem, Relation
from proctor.benchmarks.libero_scene import ENVIRONMENT_STATE, Scene
from proctor.errors import UsageError
from proctor.types import Array, Observation, Task

_CLEAR_M = 0.04


def check_solvable(problem: Problem, task: Task) -> None:
    """Refuse a task that the expert has no skill for."""


class LiberoExpert:
    """The script of one episode."""

    def __init__(self, problem: Problem) -> None:
        self._scene = Scene(problem)
        self._hand = Hand(self._scene)
        self._script = self._run(problem)

    def __call__(self, observation: Observation) -> Array:
        """Return the next action."""
        self._scene.update(observation[ENVIRONMENT_STATE])
        return next(self._script)

    def _run(self, problem: Problem) -> Actions:
        while True:
            for goal in problem.goals:
                yield from self._achieve(goal)
            yield from self._hand.set(Fingers.OPEN, 1)

    def _achieve(self, goal: Goal) -> Actions:
        assert goal.place is not None
        for attempt in range(10):
            yield from self._pick(goal.subject, attempt)
            if self._holds(goal.subject):
                yield from self._place(goal)
                return

    def _pick(self, name: str, attempt: int) -> Actions:
        """Reach above, descend, close, lift."""
        scene, hand = self._scene, self._hand
        grasp = choose_grasp(scene, name, attempt)
        hand.fingers = Fingers.OPEN
        hand.point_down(grasp.across)
        start = scene.hand.position
        above = grasp.point.copy()
        above[2] = max(
            scene.top_between(start, grasp.point, 0.05) + _CLEAR_M, grasp.point[2] + 0.06
        )
        if start[2] < above[2] - 0.05:
            yield from hand.go(np.array([*start[:2], above[2]]), within=0.03)
        yield from hand.go(above, within=0.015)
        yield from hand.go(grasp.point, within=0.006, patience=40)
        yield from hand.set(Fingers.CLOSED, 8)
        yield from hand.go(scene.hand.position + 0.06 * UP, within=0.02, patience=20)

    def _holds(self, name: str) -> bool:
        part, hand = self._scene[name], self._scene.hand
        low, high = part.bounds
        inside = (hand.position > low - 0.03).all() and (hand.position < high + 0.03).all()
        return bool(inside and hand.joint > 0.001)

    def _place(self, goal: Goal) -> Actions:
        scene, hand = self._scene, self._hand
        place = scene[goal.place]
        name = goal.subject
        low, high = scene[name].bounds
        below = scene[name].position[2] - low[2]
        start = scene[name].position
        if goal.relation is Relation.IN:
            target = place.centre.copy()
            rest = place.bounds[1][2] - 0.03
        else:
            target = place.centre.copy()
            rest = place.bounds[1][2] + below + 0.005
        owner = scene.problem.owner_of.get(goal.place, goal.place)
        top = max(
            scene.top_between(start, target, 0.08, ignored=name),
            place.bounds[1][2],
        )
        travel = top + below + _CLEAR_M
        for within, point in (
            (0.03, np.array([*start[:2], travel])),
            (0.02, np.array([*target[:2], travel])),
            (0.008, np.array([*target[:2], rest])),
        ):
            yield from hand.follow(
                lambda point=point: point - scene[name].position, within=within, patience=80
            )
        yield from hand.set(Fingers.OPEN, 6)
        yield from hand.go(scene.hand.position + 0.08 * UP, within=0.02, patience=20)
