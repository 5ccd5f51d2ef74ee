"""One p-value for every difference: verdict, interval and gate never contradict each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from proctor.stats.differences import (
    Independent,
    Paired,
    Samples,
    compatible_intervals,
    difference_interval,
    effective_pairs,
    p_value,
    p_worse,
)
from proctor.stats.rates import holm

ALPHAS = (0.2, 0.1, 0.05, 0.01, 1e-4)


def paired_tables(sizes: Iterable[int]) -> Iterator[Paired]:
    """Yield all tables of these sizes; those in which A wins more are mirror images."""
    for n in sizes:
        for lost, won in product(range(n + 1), repeat=2):
            if lost <= won and lost + won <= n:
                yield Paired(0, lost, won, n - lost - won)


def independent_tables(sizes: Iterable[tuple[int, int]]) -> Iterator[Independent]:
    for n_a, n_b in sizes:
        for a, b in product(range(n_a + 1), range(n_b + 1)):
            yield Independent(a, n_a, b, n_b)


def alphas_of(counts: Samples) -> list[float]:
    """Return some levels, and those next to the table's own p-value, where a verdict turns."""
    p = p_value(counts)
    own = (p, math.nextafter(p, 0), math.nextafter(p, 1), p * 0.999, p * 1.001)
    return [*ALPHAS, *(alpha for alpha in own if 1e-12 < alpha < 0.5)]


def contradictions(tables: Iterable[Samples], alphas: Iterable[float] = ()) -> list[object]:
    """Return the tables and levels at which the closed interval and the p-value disagree."""
    found: list[object] = []
    for counts in tables:
        difference = counts.difference
        assert difference is not None
        for alpha in alphas or alphas_of(counts):
            interval = difference_interval(counts, alpha)
            assert interval is not None
            excludes = interval[0] > 0 or interval[1] < 0
            inside = -1 <= interval[0] <= difference <= interval[1] <= 1
            if excludes != (p_value(counts) <= alpha) or not inside:
                found.append((counts, alpha, interval))
    return found


def test_p_is_at_most_alpha_exactly_if_the_interval_of_pairs_excludes_0() -> None:
    assert contradictions(paired_tables([1, 2, 5, 9])) == []
    assert (
        contradictions([Paired(3, y, x, 40 - x - y) for x, y in ((14, 3), (9, 1), (20, 8))]) == []
    )


def test_p_is_at_most_alpha_exactly_if_the_interval_of_samples_excludes_0() -> None:
    assert contradictions(independent_tables([(1, 1), (2, 5), (5, 5)])) == []
    assert contradictions([Independent(12, 40, 21, 40), Independent(20, 30, 29, 30)]) == []


def test_no_table_of_up_to_60_pairs_contradicts_itself() -> None:
    assert contradictions(paired_tables(range(1, 61)), [0.05]) == []
    assert contradictions(list(paired_tables(range(1, 61)))[::19]) == []


def test_no_table_of_up_to_40_episodes_a_side_contradicts_itself() -> None:
    equal = independent_tables((n, n) for n in range(1, 41))
    swapped = [one for one in equal if one.a <= one.b and one.a + one.b <= one.n_a]
    assert contradictions(swapped, [0.05]) == []
    mixed = list(independent_tables((n, other) for n in range(1, 41) for other in range(1, 41)))
    assert contradictions(mixed[::499]) == []


def clustered(seed: int, starts: int, most: int, rate_a: float, rate_b: float) -> Paired:
    """Return effective counts of starts with up to ``most`` pairs, alike or not."""
    rng = np.random.default_rng(seed)
    units = []
    for _ in range(starts):
        size = int(rng.integers(1, most + 1))
        pairs = rng.random((1 if rng.random() < 0.5 else size, 2)) < (rate_a, rate_b)
        units.append([(bool(a), bool(b)) for a, b in np.broadcast_to(pairs, (size, 2))])
    return effective_pairs(units)


@given(
    st.integers(0, 10_000),
    st.integers(1, 40),
    st.integers(1, 6),
    st.sampled_from([0.05, 0.5, 0.9]),
    st.sampled_from([0.2, 0.6, 1.0]),
)
def test_clustered_counts_never_contradict_themselves(
    seed: int, starts: int, most: int, rate_a: float, rate_b: float
) -> None:
    counts = clustered(seed, starts, most, rate_a, rate_b)
    assert contradictions([counts], [0.05, 0.01, min(0.4, max(1e-9, p_value(counts)))]) == []


def test_single_pairs_are_counted_as_they_are() -> None:
    pairs = [(True, True), (True, False), (False, True), (False, True), (False, False)]
    assert effective_pairs([[pair] for pair in pairs]) == Paired(1, 1, 2, 1)
    assert effective_pairs([]) == Paired(0, 0, 0, 0)


def test_copies_of_a_pair_add_nothing_whatever_their_number() -> None:
    rng = np.random.default_rng(3)
    pairs = [(bool(a), bool(b)) for a, b in rng.random((30, 2)) < (0.4, 0.7)]
    once = effective_pairs([[pair] for pair in pairs])
    often = effective_pairs([[pair] * (1 + i % 5) for i, pair in enumerate(pairs)])
    assert (often.only_a, often.only_b, often.n) == pytest.approx(
        (once.only_a, once.only_b, once.n)
    )


def test_independent_repeats_count_nearly_in_full_and_starts_weigh_alike() -> None:
    rng = np.random.default_rng(4)
    sizes = [1 + i % 4 for i in range(200)]
    units = [[(bool(a), bool(b)) for a, b in rng.random((n, 2)) < 0.5] for n in sizes]
    counts = effective_pairs(units)
    assert 320 < counts.n <= 200 / np.mean([1 / n for n in sizes]) + 1e-6
    by_start = np.mean([np.mean([b - a for a, b in np.array(unit, int)]) for unit in units])
    assert counts.difference == pytest.approx(by_start)


def test_under_ten_starts_repeats_are_taken_for_copies() -> None:
    units = [[(False, True), (False, False), (True, True)]] * 9
    assert effective_pairs(units).n == pytest.approx(9)


def test_the_gate_asks_the_same_function_at_minus_the_margin() -> None:
    """At level alpha, B is worse by more than M exactly if the 1 - 2 alpha interval ends below."""
    for counts in (Paired(20, 14, 3, 13), Paired(20, 9, 1, 10), Independent(30, 40, 17, 40)):
        for margin in (0.0, 0.02, 0.1, 0.2):
            p = p_worse(counts, margin)
            for alpha in (0.01, 0.05, *(p * near for near in (0.999, 1.001) if p < 0.2)):
                interval = difference_interval(counts, 2 * alpha)
                assert interval is not None
                assert (p <= alpha) == (interval[1] < -margin), (counts, margin, alpha)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_intervals_of_several_runs_agree_with_holm(k: int) -> None:
    rng = np.random.default_rng(k)
    for _ in range(25):
        n, better = int(rng.integers(10, 60)), rng.random() * 0.5
        runs: list[Samples] = []
        for _ in range(k):
            cells = rng.multinomial(n, [0.3, 0.15, 0.15 + better / 2, 0.4 - better / 2])
            runs.append(Paired(*(int(cell) for cell in cells)))
        p_holm = holm([p_value(run) for run in runs])
        intervals = compatible_intervals(runs, p_holm, 0.05)
        for run, p, interval in zip(runs, p_holm, intervals, strict=True):
            assert interval is not None
            assert (p <= 0.05) == (interval[0] > 0 or interval[1] < 0)
            alone = difference_interval(run)
            assert alone is not None
            assert interval[0] <= max(alone[0], 1e-9)
            assert interval[1] >= min(alone[1], -1e-9)


def test_a_significant_difference_whose_wide_interval_holds_0_is_cut_there() -> None:
    clear, near = Paired(10, 0, 12, 8), Paired(20, 4, 14, 4)
    p_holm = holm([p_value(clear), p_value(near)])
    assert 0.025 < p_holm[1] <= 0.05
    low, high = compatible_intervals([clear, near], p_holm, 0.05)[1] or (0, 0)
    alone = difference_interval(near, 0.025)
    assert alone is not None
    assert alone[0] < 0 < low < 1e-6
    assert high == alone[1]


def coverage(n: int, difference: float, unequal: float, alpha: float) -> float:
    """Return by enumeration how often the interval of n pairs covers the true difference."""
    covered = 0.0
    for lost, won in product(range(n + 1), repeat=2):
        if lost + won <= n:
            counts = Paired(0, lost, won, n - lost - won)
            low, high = difference_interval(counts, alpha) or (0, 0)
            shares = [(unequal - difference) / 2, (unequal + difference) / 2, 1 - unequal]
            chance = scipy_stats.multinomial.pmf([lost, won, n - lost - won], n, shares)
            covered += chance * (low <= difference <= high)
    return covered


@pytest.mark.parametrize(("difference", "unequal"), [(0.0, 0.2), (0.3, 0.4), (0.8, 0.8)])
def test_the_interval_covers_the_difference_by_enumeration(
    difference: float, unequal: float
) -> None:
    assert coverage(12, difference, unequal, 0.05) >= 0.95


def test_large_samples_are_fast_and_near_the_normal_interval() -> None:
    low, high = difference_interval(Paired(50_000, 10_000, 11_000, 29_000)) or (0, 0)
    half = 1.959964 * math.sqrt(21_000 / 100_000 - 0.01**2) / math.sqrt(100_000)
    assert (low, high) == pytest.approx((0.01 - half, 0.01 + half), abs=2e-5)
