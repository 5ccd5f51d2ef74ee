from __future__ import annotations

import numpy as np
import pytest

from proctor.benchmarks.libero.expert import LiberoExpert
from proctor.benchmarks.libero.problem import Goal, Problem, Relation
from proctor.benchmarks.libero.scene import COLUMNS, ROWS
from proctor.features import ENVIRONMENT_STATE


def test_a_knob_with_nothing_on_the_way_is_approached_at_a_finite_height() -> None:
    stove = "flat_stove_1"
    problem = Problem(
        {stove: "flat_stove"}, {}, (Goal(Relation.TURN_ON, stove),), open_at_first=frozenset()
    )
    table = np.zeros((ROWS, COLUMNS))
    table[0, :8] = (-0.208, 0.0, 1.173, 0.0, 1.0, 0.0, 0.0, 0.077)
    table[1, :8] = (-0.193, 0.191, 0.905, 1.0, 0.0, 0.0, 0.0, 0.0)
    table[1, 8:] = (0.055, -0.095, -0.02, 0.245, 0.095, 0.025)  # the knob is outside of its box
    action = LiberoExpert(problem)({ENVIRONMENT_STATE: table})
    assert np.isfinite(action).all()


@pytest.mark.parametrize(("stove_x", "reachable"), [(-0.2, True), (0.035, False)])
def test_pots_that_share_a_far_stove_stand_side_by_side_at_its_near_edge(
    stove_x: float, reachable: bool
) -> None:
    pots, plate = ("moka_pot_1", "moka_pot_2"), "flat_stove_1_cook_region"
    problem = Problem(
        dict.fromkeys(pots, "moka_pot") | {"flat_stove_1": "flat_stove"},
        {plate: "flat_stove_1"},
        tuple(Goal(Relation.ON, pot, plate) for pot in pots),
        open_at_first=frozenset(),
    )
    upright = (1.0, 0.0, 0.0, 0.0, 0.0)
    rows = {
        pots[0]: (-0.05, 0.25, 0.966, *upright, -0.041, -0.091, -0.066, 0.041, 0.056, 0.086),
        pots[1]: (-0.2, -0.2, 0.966, *upright, -0.041, -0.091, -0.066, 0.041, 0.056, 0.086),
        "flat_stove_1": (stove_x, 0.06, 0.905, *upright, 0.055, -0.095, -0.02, 0.245, 0.095, 0.025),
        plate: (stove_x + 0.15, 0.06, 0.905, *upright, *(-0.075,) * 3, *(0.075,) * 3),
    }
    table = np.zeros((ROWS, COLUMNS))
    table[0, :8] = (-0.208, 0.0, 1.173, 0.0, 1.0, 0.0, 0.0, 0.077)
    for row, name in enumerate(problem.part_names, start=1):
        table[row] = rows[name]
    expert = LiberoExpert(problem)
    expert({ENVIRONMENT_STATE: table})
    spots = [expert._target(pot, plate) for pot in pots]
    centre, apart = np.mean(spots, axis=0), np.abs(spots[1] - spots[0])
    assert (apart[0] > apart[1]) == reachable  # in the pots' direction, else across the robot's
    assert np.allclose(centre, (stove_x + 0.15, 0.06)) == reachable
    assert all((np.abs(spot - (stove_x + 0.15, 0.06)) < 0.075).all() for spot in spots)
