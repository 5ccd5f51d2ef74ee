"""Targets between two actions, as LeRobot's interpolator sends them (golden: misc.json)."""

from __future__ import annotations

import pytest

from proctor.control.loop.interpolation import ActionInterpolator

Rows = list[list[float]]


@pytest.mark.parametrize(
    ("multiplier", "actions", "sent"),
    [
        (1, [[0.0, 1.0], [1.0, 3.0]], [[0.0, 1.0], [1.0, 3.0]]),
        (
            2,
            [[0.0, 1.0], [1.0, 3.0], [5.0, -1.0]],
            [[0.0, 1.0], [0.5, 2.0], [1.0, 3.0], [3.0, 1.0], [5.0, -1.0]],
        ),
        (3, [[0.0, 0.0], [3.0, 9.0]], [[0.0, 0.0], [1.0, 3.0], [2.0, 6.0], [3.0, 9.0]]),
    ],
)
def test_targets_are_those_of_lerobot(multiplier: int, actions: Rows, sent: Rows) -> None:
    interpolator = ActionInterpolator(multiplier)
    targets = []
    for first, second in actions:
        assert interpolator.needs_action
        interpolator.add({"a.pos": first, "b.pos": second})
        while not interpolator.needs_action:
            targets.append(list(interpolator.next_target().values()))
    assert targets == sent


def test_a_new_episode_does_not_start_from_the_last_action() -> None:
    interpolator = ActionInterpolator(2)
    interpolator.add({"a.pos": 0.0})
    interpolator.next_target()
    interpolator.reset()
    interpolator.add({"a.pos": 8.0})
    assert interpolator.next_target() == {"a.pos": 8.0}
    assert interpolator.needs_action
