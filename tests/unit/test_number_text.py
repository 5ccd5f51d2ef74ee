"""A printed number never reaches a bound that the number does not reach."""

from __future__ import annotations

import random

import pytest

from proctor.number_text import interval_text, percent_text, points_text


@pytest.mark.parametrize(
    ("rate", "shown"),
    [(1.0, "100.0%"), (0.9999, "99.9%"), (0.0, "0.0%"), (0.0001, "0.1%"), (0.7125, "71.2%")],
)
def test_a_rate_is_100_or_0_only_if_every_or_no_episode_succeeded(rate: float, shown: str) -> None:
    assert percent_text(rate) == shown


def test_a_limit_is_printed_as_100_only_if_it_is_100() -> None:
    assert interval_text((0.0002, 0.99996)) == "[0.1, 99.9]"
    assert interval_text((0.0, 1.0)) == "[0.0, 100.0]"
    assert interval_text((0.02, 99.98), 1) == "[0.1, 99.9]"


def test_a_printed_interval_holds_0_exactly_if_the_interval_does() -> None:
    assert points_text(0.02, (0.0003, 0.04)) == "+2.0 [+0.1, +4.0]"
    assert points_text(-0.02, (-0.04, -0.0003)) == "-2.0 [-4.0, -0.1]"
    assert points_text(0.0, (0.0, 0.0)) == "+0.0 [+0.0, +0.0]"
    numbers = random.Random(0)
    for _ in range(2000):
        low, high = sorted(numbers.gauss(0, 0.002) for _ in range(2))
        shown = points_text((low + high) / 2, (low, high)).partition("[")[2].rstrip("]")
        first, last = (float(end) for end in shown.split(","))
        assert (first <= 0 <= last) is (low <= 0 <= high)


def test_a_difference_without_an_interval_is_not_available() -> None:
    assert points_text(None, None) == points_text(0.1, None) == "n/a"
