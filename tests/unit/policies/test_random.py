"""The random policy's actions, which every earlier run with the same seed has executed."""

from __future__ import annotations

import numpy as np
import pytest

from proctor.features import ActionSpec
from proctor.policies.scripted.random import _finite_range


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.3, 0.7), (None, 2.5), (None, None)])
def test_one_range_for_all_dimensions_draws_the_bits_of_a_range_for_each(
    low: float | None, high: float | None
) -> None:
    lowest, highest = _finite_range(ActionSpec(4, low, high))
    one, each = np.random.default_rng(7), np.random.default_rng(7)
    for shape in [(1, 4), (10, 4)] * 20:
        drawn = one.uniform(lowest, highest, shape)
        expected = each.uniform(np.full(4, lowest), np.full(4, highest), shape)
        assert drawn.tobytes() == expected.tobytes()


def test_dimensions_keep_their_own_ranges() -> None:
    lowest, highest = _finite_range(ActionSpec(2, (-1.0, 0.0), (1.0, np.inf)))
    np.testing.assert_array_equal(lowest, [-1.0, 0.0])
    np.testing.assert_array_equal(highest, [1.0, 2.0])
