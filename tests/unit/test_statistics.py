from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from proctor.report.statistics import rate_text, wilson_interval


@pytest.mark.parametrize(("successes", "n"), [(8, 10), (0, 10), (10, 10), (321, 450), (1, 1)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_wilson_agrees_with_scipy(successes: int, n: int, confidence: float) -> None:
    expected = binomtest(successes, n).proportion_ci(confidence, method="wilson")
    assert wilson_interval(successes, n, confidence) == pytest.approx(tuple(expected), abs=1e-12)


@given(n=st.integers(1, 2000), data=st.data())
def test_the_interval_holds_the_rate_and_stays_in_range(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    interval = wilson_interval(successes, n)
    assert interval is not None
    low, high = interval
    assert 0.0 <= low <= successes / n <= high <= 1.0


@pytest.mark.parametrize("p", [0.3, 0.5, 0.8])
def test_the_interval_covers_about_as_often_as_it_says(p: float) -> None:
    n = 60
    covered = 0.0
    for k in range(n + 1):
        low, high = wilson_interval(k, n) or (0, 0)
        covered += comb(n, k) * p**k * (1 - p) ** (n - k) * (low <= p <= high)
    assert 0.93 < covered < 0.97


def test_no_episodes_is_not_available_rather_than_zero() -> None:
    assert wilson_interval(0, 0) is None
    assert rate_text(0, 0) == "n/a"
    assert rate_text(321, 450) == "71.3% [67.0, 75.3] n=450"
