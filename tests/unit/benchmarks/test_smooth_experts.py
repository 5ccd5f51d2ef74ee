"""Smooth experts of Meta-World: functions of the current observation without jumps."""

from __future__ import annotations

import numpy as np
import pytest

from proctor.benchmarks.metaworld.benchmark import ExpertScripts, Metaworld, MetaworldConfig
from proctor.benchmarks.metaworld.smooth_experts import SMOOTH_EXPERTS
from proctor.benchmarks.metaworld.smooth_experts.motions import OPEN, Grasp, funnel, move, ramp, xyz
from proctor.benchmarks.metaworld.tasks import TASKS
from proctor.features import Array
from proctor.fingerprint import defining_fields

STEP_M = 1e-4
LARGEST_CHANGE = 0.15
"""Of an action for 0.1 mm: a change from -1 to 1 takes more than a millimetre."""


def states(n: int) -> Array:
    """Return observations with the hand near the object, where experts decide."""
    rng = np.random.default_rng(0)
    seen = np.zeros((n, 39))
    seen[:, 4:7] = rng.uniform((-0.2, 0.45, 0.0), (0.3, 0.9, 0.25), (n, 3))
    seen[:, 7:11] = (0, 0, 0, 1)
    seen[:, 11:14] = rng.uniform((-0.2, 0.45, 0.0), (0.3, 0.9, 0.25), (n, 3))
    seen[:, 36:39] = rng.uniform((-0.2, 0.45, 0.0), (0.3, 0.9, 0.25), (n, 3))
    near = seen[:, 4:7] + rng.normal(0, 0.04, (n, 3))
    far = rng.uniform((-0.4, 0.4, 0.05), (0.4, 0.95, 0.4), (n, 3))
    seen[:, :3] = np.where(rng.random((n, 1)) < 0.7, near, far)
    seen[:, 3] = rng.uniform(0, 1, n)
    return seen


def test_every_smooth_expert_is_one_of_a_task() -> None:
    assert SMOOTH_EXPERTS.keys() <= {row.name for row in TASKS}
    assert len(SMOOTH_EXPERTS) >= 30


@pytest.mark.parametrize("task", SMOOTH_EXPERTS)
def test_an_action_changes_gradually_with_the_observation(task: str) -> None:
    expert, rng = SMOOTH_EXPERTS[task], np.random.default_rng(1)
    for seen in states(400):
        moved = seen.copy()
        for part in (slice(0, 3), slice(4, 7), slice(11, 14), slice(36, 39)):
            direction = rng.normal(size=3)
            moved[part] += STEP_M * direction / np.linalg.norm(direction)
        before, after = (np.clip(expert(x), -1, 1) for x in (seen, moved))
        assert before.shape == (4,)
        assert np.isfinite(before).all()
        assert np.abs(after - before).max() <= LARGEST_CHANGE, seen.round(3)


@pytest.mark.parametrize("task", SMOOTH_EXPERTS)
def test_an_action_depends_on_the_current_observation_alone(task: str) -> None:
    expert = SMOOTH_EXPERTS[task]
    for seen in states(20):
        given = seen.copy()
        first = expert(given)
        assert (given == seen).all(), "an expert may not change what it is given"
        given[18:36] = 7.0  # the previous step
        assert (expert(given) == first).all()


def test_a_flag_chooses_the_experts_and_is_part_of_the_definition() -> None:
    usual, named, smooth = (
        MetaworldConfig(task="peg-insert-side-v3", expert=expert)
        for expert in (None, ExpertScripts.METAWORLD, ExpertScripts.SMOOTH)
    )
    assert defining_fields(usual) == defining_fields(named) != defining_fields(smooth)
    (task,) = Metaworld(smooth).tasks()
    state = states(1)[0]
    chosen = Metaworld(smooth).expert(task)({"observation.environment_state": state})
    assert (chosen == SMOOTH_EXPERTS[task.name](state)).all()


def test_a_task_without_a_smooth_expert_has_meta_worlds_own() -> None:
    without = next(row.name for row in TASKS if row.name not in SMOOTH_EXPERTS)
    benchmark = Metaworld(MetaworldConfig(task=without, expert=ExpertScripts.SMOOTH))
    (task,) = benchmark.tasks()
    assert type(benchmark.expert(task)) is type(Metaworld(MetaworldConfig()).expert(task))


def test_a_grasp_approaches_closes_and_carries() -> None:
    at, grasp = xyz(0, 0.6, 0.05), Grasp()

    def seen(hand: Array, fingers: float) -> Array:
        return np.array([*hand, fingers])

    def carry(hand: Array) -> Array:
        return xyz(0, 0, 1)

    far = grasp.act(seen(xyz(0.2, 0.6, 0.2), 1.0), at, carry)
    assert far[0] == -1
    assert far[3] == OPEN
    above = grasp.act(seen(at + xyz(0, 0, 0.1), 1.0), at, carry)
    assert above[2] < 0
    assert above[3] == OPEN
    there = grasp.act(seen(at, 1.0), at, carry)
    assert there[3] == grasp.effort
    assert there[2] == 0
    assert grasp.act(seen(at, grasp.closed), at, carry)[2] == 1


def test_motions_have_their_limits() -> None:
    assert (ramp(1, 2, 4), ramp(3, 2, 4), ramp(5, 2, 4)) == (0, 0.5, 1)
    assert move(xyz(0, 0, 0), xyz(1, -1, 0)).tolist() == [1, -1, 0]
    goal = xyz(0, 0.6, 0.02)
    assert funnel(goal, goal, 0.1, 0.01, 0.05)[2] == pytest.approx(0.02)
    assert funnel(goal + xyz(0.2, 0, 0), goal, 0.1, 0.01, 0.05)[2] == pytest.approx(0.12)
