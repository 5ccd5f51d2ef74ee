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
_LIFT_M = 0.08


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
            yield from self._hand.stay(1)

    def _achieve(self, goal: Goal) -> Actions:
        assert goal.place is not None
        for attempt in range(10):
            before = self._scene[goal.subject].position[2]
            yield from self._pick(goal.subject, attempt)
            if self._scene[goal.subject].position[2] > before + _LIFT_M / 2:
                yield from self._place(goal)
                return
            yield from self._hand.set(Fingers.OPEN)
            yield from self._hand.stay(5)

    def _pick(self, name: str, attempt: int) -> Actions:
        """Reach above, descend, close, lift."""
        scene, hand = self._scene, self._hand
        grasp = choose_grasp(scene, name, attempt)
        hand.fingers = Fingers.OPEN
        hand.point_down(grasp.across)
        start = scene.hand.position
        top = scene.top_between(start, grasp.point, 0.05)
        height = max(top + _CLEAR_M, grasp.point[2] + 0.06)
        if start[2] < height - 0.05:
            yield from hand.go(np.array([*start[:2], height]), within=0.03)
        yield from hand.go(np.array([*grasp.point[:2], height]), within=0.015)
        yield from hand.go(grasp.point, within=0.006, patience=40)
        yield from hand.set(Fingers.CLOSED)
        yield from hand.go(scene.hand.position + _LIFT_M * UP, within=0.02, patience=20)

    def _place(self, goal: Goal) -> Actions:
        """Carry what is held over its place, lower it, let go, move away."""
        scene, hand, name = self._scene, self._hand, goal.subject
        assert goal.place is not None
        place, start = scene[goal.place], scene[name].position
        below = start[2] - scene[name].bounds[0][2]
        surface = place.bounds[1][2]
        rest = surface - 0.03 if goal.relation is Relation.IN else surface + below + 0.003
        x, y, _ = place.centre
        top = max(scene.top_between(start, place.centre, 0.08, ignored=name), surface)
        travel = top + below + _CLEAR_M
        yield from self._carry(name, np.array([*start[:2], travel]), within=0.03)
        yield from self._carry(name, np.array([x, y, travel]), within=0.015)
        yield from self._carry(name, np.array([x, y, rest]), within=0.006)
        yield from hand.set(Fingers.OPEN)
        yield from hand.go(scene.hand.position + 0.08 * UP, within=0.02, patience=20)

    def _carry(self, name: str, target: Array, *, within: float) -> Actions:
        """Move the hand so that the origin of what it holds comes to ``target``."""
        yield from self._hand.follow(
            lambda: target - self._scene[name].position, within=within, patience=80
        )
