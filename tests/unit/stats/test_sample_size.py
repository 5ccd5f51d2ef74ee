"""Exact powers against enumeration, and numbers of episodes against simulation."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.stats import binom

from proctor.stats.differences import Independent, Paired, p_value
from proctor.stats.rates import wilson_interval
from proctor.stats.sample_size import (
    agreement_by_chance,
    episodes_for_difference,
    episodes_for_width,
    harder_rate,
    pairs_for_difference,
    possible_agreement,
    power_independent,
    power_paired,
)

REPEATS = 1500


@pytest.mark.parametrize(("n", "a", "b"), [(1, 0.5, 0.6), (7, 0.1, 0.9), (12, 0.5, 0.8)])
def test_the_power_of_fishers_test_is_the_sum_over_all_outcomes(n: int, a: float, b: float) -> None:
    of_a, of_b = (binom.pmf(range(n + 1), n, rate) for rate in (a, b))
    enumerated = sum(
        of_a[i] * of_b[j]
        for i in range(n + 1)
        for j in range(n + 1)
        if p_value(Independent(i, n, j, n)) <= 0.05
    )
    assert power_independent(n, a, b) == pytest.approx(enumerated, abs=1e-9)


@pytest.mark.parametrize(
    ("n", "difference", "agreement"), [(1, 0.2, 0.5), (12, 0.4, 0.6), (40, 0.2, 0.6)]
)
def test_the_power_of_mcnemars_test_is_the_sum_over_all_outcomes(
    n: int, difference: float, agreement: float
) -> None:
    share = 1 - agreement
    wins = (share + difference) / (2 * share)
    enumerated = sum(
        binom.pmf(unequal, n, share) * binom.pmf(k, unequal, wins)
        for unequal in range(n + 1)
        for k in range(unequal + 1)
        if p_value(Paired(0, unequal - k, k, n - unequal)) <= 0.05
    )
    assert power_paired(n, difference, agreement) == pytest.approx(enumerated, abs=1e-9)


def test_simulated_comparisons_find_the_difference_as_often_as_planned() -> None:
    n = episodes_for_difference(0.5, 0.8)
    rng = np.random.default_rng(0)
    outcomes = zip(rng.binomial(n, 0.5, REPEATS), rng.binomial(n, 0.8, REPEATS), strict=True)

    @cache
    def found(a: int, b: int) -> bool:
        return p_value(Independent(a, n, b, n)) <= 0.05

    share = sum(found(int(a), int(b)) for a, b in outcomes) / REPEATS
    assert share == pytest.approx(power_independent(n, 0.5, 0.8), abs=0.035)
    assert share > 0.76


def test_simulated_pairs_find_the_difference_as_often_as_planned() -> None:
    difference, agreement = 0.1, 0.8
    n = pairs_for_difference(difference, agreement)
    share = 1 - agreement
    cells = [agreement, (share - difference) / 2, (share + difference) / 2]
    drawn = np.random.default_rng(1).multinomial(n, cells, REPEATS)
    found = sum(p_value(Paired(int(e), int(a), int(b), 0)) <= 0.05 for e, a, b in drawn) / REPEATS
    assert found == pytest.approx(power_paired(n, difference, agreement), abs=0.035)
    assert found > 0.76


def test_one_episode_less_would_not_be_enough() -> None:
    n = episodes_for_difference(0.9, 0.8)
    assert power_independent(n, 0.9, 0.8) >= 0.8 > power_independent(n - 1, 0.9, 0.8)


@pytest.mark.parametrize(("width", "rate"), [(0.1, 0.5), (0.04, 0.9), (0.3, 0.0)])
def test_the_interval_of_the_planned_run_is_as_narrow_as_asked(width: float, rate: float) -> None:
    n = episodes_for_width(width, rate)
    low, high = wilson_interval(round(rate * n), n) or (0.0, 1.0)
    assert high - low <= width * 1.02  # the rate of a run is a whole number of successes
    low, high = wilson_interval(round(rate * (n // 2)), n // 2) or (0.0, 1.0)
    assert high - low > width


def test_pairing_needs_fewer_episodes_the_more_the_policies_agree() -> None:
    needed = [pairs_for_difference(0.1, agreement) for agreement in (0.5, 0.7, 0.9)]
    assert needed == sorted(needed, reverse=True)


def test_independent_outcomes_need_as_many_pairs_as_unpaired_episodes() -> None:
    by_chance = agreement_by_chance(0.5, 0.6)
    assert pairs_for_difference(0.1, by_chance) == pytest.approx(
        episodes_for_difference(0.5, 0.6), rel=0.05
    )


def test_the_harder_rate_is_nearer_to_one_half_and_exists() -> None:
    assert harder_rate(0.9, 0.1) == pytest.approx(0.8)
    assert harder_rate(0.1, 0.1) == pytest.approx(0.2)
    assert harder_rate(0.4, 0.7) == pytest.approx(-0.3)


def test_rates_bound_how_often_two_policies_can_agree() -> None:
    assert possible_agreement(0.9, 0.8) == pytest.approx((0.7, 0.9))
