from __future__ import annotations

import numpy as np

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
