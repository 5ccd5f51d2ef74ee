"""Statistics against reference implementations, exact enumeration and simulation."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from scipy import stats as scipy_stats

from proctor.features import Array
from proctor.stats.differences import (
    Independent,
    Paired,
    Samples,
    detectable_difference,
    difference_interval,
    needed_for,
    p_value,
    p_worse,
    probability_b_better,
)
from proctor.stats.rates import (
    clopper_pearson_interval,
    holm,
    macro_average,
    micro_average,
    rate_text,
    wilson_interval,
)

EXACT = 1e-9


@st.composite
def successes_of(draw: st.DrawFn) -> tuple[int, int]:
    n = draw(st.integers(1, 400))
    return draw(st.integers(0, n)), n


pairs_of = st.builds(Paired, *[st.integers(0, 60)] * 4)


# statsmodels 0.15.0: proportion_confint(k, n, 0.05, method) with "wilson" and "beta".
@pytest.mark.parametrize(
    ("counts", "wilson", "exact"),
    [
        ((0, 10), (0.0, 0.27753279986288926), (0.0, 0.30849710781876083)),
        (
            (3, 10),
            (0.10779126740630104, 0.6032218525388546),
            (0.06673951117773447, 0.6524528500599973),
        ),
        (
            (45, 50),
            (0.7863976856252034, 0.9565242350681095),
            (0.7818646335657977, 0.9667249064109775),
        ),
        ((50, 50), (0.9286524008666412, 1.0), (0.9288782635358024, 1.0)),
        (
            (321, 450),
            (0.6698848480293167, 0.7531703759224826),
            (0.66913217880446, 0.7547040521062446),
        ),
    ],
)
def test_intervals_of_a_rate_are_those_of_statsmodels(
    counts: tuple[int, int], wilson: tuple[float, float], exact: tuple[float, float]
) -> None:
    assert wilson_interval(*counts) == pytest.approx(wilson, abs=EXACT)
    assert clopper_pearson_interval(*counts) == pytest.approx(exact, abs=EXACT)


@given(successes_of(), st.sampled_from([0.8, 0.95, 0.99]))
def test_intervals_of_a_rate_are_those_of_scipy(counts: tuple[int, int], level: float) -> None:
    k, n = counts
    test = scipy_stats.binomtest(k, n)
    wilson, exact = test.proportion_ci(level, "wilson"), test.proportion_ci(level, "exact")
    assert wilson_interval(k, n, level) == pytest.approx(tuple(wilson), abs=EXACT)
    assert clopper_pearson_interval(k, n, level) == pytest.approx(tuple(exact), abs=EXACT)


def test_nothing_measured_gives_no_interval() -> None:
    assert wilson_interval(0, 0) is None
    assert clopper_pearson_interval(0, 0) is None
    assert rate_text(0, 0) == "n/a"
    assert macro_average([]) is None
    assert micro_average([(0, 0)]) is None
    assert difference_interval(Paired(0, 0, 0, 0)) is None
    assert difference_interval(Independent(0, 0, 3, 4)) is None
    assert p_value(Independent(0, 0, 3, 4)) == p_value(Paired(0, 0, 0, 0)) == 1
    assert p_worse(Paired(0, 0, 0, 0), 0.0) == p_worse(Independent(0, 0, 0, 0), 0.0) == 1
    assert detectable_difference(Paired(0, 0, 0, 0)) is None
    assert detectable_difference(Independent(0, 0, 0, 0)) is None


RATES = np.linspace(0.005, 0.995, 199)


@pytest.mark.parametrize("n", [10, 50, 200])
def test_coverage_by_enumeration_is_guaranteed_by_clopper_pearson_and_right_on_average_by_wilson(
    n: int,
) -> None:
    coverage = {}
    for method in (wilson_interval, clopper_pearson_interval):
        covered = np.zeros(len(RATES))
        for k in range(n + 1):
            interval = method(k, n)
            assert interval is not None
            inside = (interval[0] <= RATES) & (interval[1] >= RATES)
            covered += inside * scipy_stats.binom.pmf(k, n, RATES)
        coverage[method.__name__] = covered
    assert coverage["clopper_pearson_interval"].min() >= 0.95
    assert coverage["wilson_interval"].mean() == pytest.approx(0.95, abs=0.01)
    assert coverage["wilson_interval"].min() > 0.82


def test_a_score_interval_for_large_samples_is_that_of_statsmodels() -> None:
    """Fair coins are as many as the score test's variance, so for many episodes both agree.

    statsmodels 0.15.0: confint_proportions_2indep(4200, 10000, 4000, 10000, method="score").
    """
    interval = difference_interval(Independent(4000, 10_000, 4200, 10_000))
    assert interval == pytest.approx((0.0063674, 0.0336252), abs=2e-4)


@given(pairs_of)
def test_swapping_the_runs_turns_every_number_around(counts: Paired) -> None:
    swapped = Paired(counts.both, counts.only_b, counts.only_a, counts.neither)
    interval, other = difference_interval(counts), difference_interval(swapped)
    if interval is not None and other is not None:
        assert interval == pytest.approx((-other[1], -other[0]), abs=EXACT)
        assert interval[0] <= (counts.difference or 0.0) <= interval[1]
    assert p_value(counts) == pytest.approx(p_value(swapped), abs=EXACT)
    total = probability_b_better(counts) + probability_b_better(swapped)
    assert total == pytest.approx(1, abs=EXACT)


def test_pairs_that_agree_make_the_interval_shorter() -> None:
    paired = difference_interval(Paired(45, 3, 7, 45))
    unpaired = difference_interval(Independent(48, 100, 52, 100))
    assert paired is not None
    assert unpaired is not None
    assert paired[1] - paired[0] < 0.6 * (unpaired[1] - unpaired[0])


# statsmodels 0.15.0: mcnemar([[20, b], [c, 10]], exact=True).pvalue.
@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [(0, 5, 0.0625), (3, 12, 0.03515625), (8, 8, 1.0), (30, 14, 0.022628841205914796)],
)
def test_mcnemars_test_is_that_of_statsmodels(only_a: int, only_b: int, p: float) -> None:
    assert p_value(Paired(20, only_a, only_b, 10)) == pytest.approx(p, abs=EXACT)


@given(pairs_of)
def test_mcnemars_test_is_scipys_binomial_test(counts: Paired) -> None:
    differ = counts.only_a + counts.only_b
    expected = scipy_stats.binomtest(counts.only_a, differ).pvalue if differ else 1.0
    assert p_value(counts) == pytest.approx(expected, abs=EXACT)


def test_independent_rates_are_tested_by_fisher() -> None:
    """Of the C(20, 12) ways to place 12 successes, those at least as lopsided as 3 to 9."""
    ways = math.comb(10, 3) * math.comb(10, 9) + math.comb(10, 2) * math.comb(10, 10)
    expected = 2 * ways / math.comb(20, 12)
    assert p_value(Independent(3, 10, 9, 10)) == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("margin", [0.0, 0.1])
@pytest.mark.parametrize("disagreement", [0.1, 0.25, 0.5, 0.9])
def test_the_gate_on_pairs_raises_at_most_alpha_false_alarms_by_enumeration(
    margin: float, disagreement: float
) -> None:
    n = 15
    shares = [(disagreement + margin) / 2, (disagreement - margin) / 2, 1 - disagreement]
    alarms = sum(
        scipy_stats.multinomial.pmf([only_a, only_b, n - only_a - only_b], n, shares)
        for only_a, only_b in product(range(n + 1), repeat=2)
        if only_a > only_b
        and only_a + only_b <= n
        and p_worse(Paired(n - only_a - only_b, only_a, only_b, 0), margin) <= 0.05
    )
    assert alarms <= 0.05


def mixes(n: int) -> Iterator[tuple[int, ...]]:
    """Split ``n`` pairs: A sure to win, no winner, B sure; A or none; B or none; A or B."""
    for bars in combinations(range(n + 5), 5):
        yield tuple(after - before - 1 for before, after in pairwise((-1, *bars, n + 5)))


def alarms_of(alarm: Array, mix: tuple[int, ...], chances: tuple[float, float, float]) -> float:
    """Return the probability of an alarm, given the chances of A, of B, and of A against B."""
    sure_a, _, sure_b, maybe_a, maybe_b, either = mix
    of_a, of_b, of_either = map(binomial, (maybe_a, maybe_b, either), chances)
    total = 0.0
    for won, chance in enumerate(of_either):
        a, b = sure_a + won, sure_b + either - won
        total += chance * (of_a @ alarm[a : a + maybe_a + 1, b : b + maybe_b + 1] @ of_b)
    return float(total)


@cache
def binomial(n: int, p: float) -> Array:
    return np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])


@pytest.mark.parametrize(("n", "margin"), [(5, 0.0), (5, 0.2), (6, 0.15)])
def test_the_gate_raises_at_most_alpha_false_alarms_over_any_mix_of_tasks_by_enumeration(
    n: int, margin: float
) -> None:
    """The probability of an alarm is linear in what each pair's chances are, so the worst mixes
    have pairs that are sure, or of three kinds, those of a kind alike (Hoeffding 1956)."""
    p = np.ones((n + 1, n + 1))
    for only_a, only_b in product(range(n + 1), repeat=2):
        if only_a + only_b <= n:
            p[only_a, only_b] = p_worse(Paired(n - only_a - only_b, only_a, only_b, 0), margin)
    alphas = [float(alpha) for alpha in np.unique(p) if alpha <= 0.13]
    worst = dict.fromkeys(alphas, 0.0)
    for mix in mixes(n):
        sure_a, _, sure_b, maybe_a, maybe_b, either = mix
        grid_a, grid_e = (np.linspace(0, 1, 5 if kind else 1) for kind in (maybe_a, either))
        for chance_a, chance_e in product(grid_a.tolist(), grid_e.tolist()):
            lead = sure_a - sure_b + maybe_a * chance_a + either * (2 * chance_e - 1) - n * margin
            chance_b = max(0.0, lead / maybe_b) if maybe_b else 0.0
            if chance_b > 1 or (lead > 1e-9 and not maybe_b):
                continue  # B is worse than the hypothesis allows
            for alpha in alphas:
                found = alarms_of(p <= alpha, mix, (chance_a, chance_b, chance_e))
                worst[alpha] = max(worst[alpha], found)
    assert all(found <= alpha + EXACT for alpha, found in worst.items()), worst
    assert max(worst.values()) > 0, "a gate that never closes would pass, too"


@pytest.mark.parametrize("margin", [0.05, 0.1])
def test_the_gate_holds_where_half_of_the_tasks_cannot_differ(margin: float) -> None:
    """Where a test for equal tasks raised 7 to 8% of false alarms at 5%."""
    n, worst = 20, 0.0
    for sure in range(n - 4):
        unsure = n - sure
        chances = binomial(unsure, (1 + min(1.0, n * margin / unsure)) / 2)
        p = [p_worse(Paired(sure, a, unsure - a, 0), margin) for a in range(unsure + 1)]
        worst = max(worst, float(chances[np.array(p) <= 0.05].sum()))
    assert 0 < worst <= 0.05


@pytest.mark.parametrize("margin", [0.0, 0.1])
@pytest.mark.parametrize("rate", [0.15, 0.5, 0.9])
def test_the_gate_on_separate_samples_raises_at_most_alpha_false_alarms_by_enumeration(
    margin: float, rate: float
) -> None:
    n = 15
    of_a, of_b = (scipy_stats.binom.pmf(np.arange(n + 1), n, p) for p in (rate, rate - margin))
    alarms = sum(
        of_a[a] * of_b[b]
        for a, b in product(range(n + 1), repeat=2)
        if b < a and p_worse(Independent(a, n, b, n), margin) <= 0.05
    )
    assert alarms <= 0.05


@pytest.mark.parametrize(
    ("lost", "kept"),
    [
        (Paired(40, 40, 5, 15), Paired(40, 10, 5, 45)),
        (Independent(80, 100, 45, 100), Independent(80, 100, 75, 100)),
    ],
)
def test_the_gate_sees_a_large_loss_and_lets_a_small_one_pass(lost: Samples, kept: Samples) -> None:
    assert p_worse(lost, 0.02) < 0.001
    assert p_worse(kept, 0.02) > 0.2
    assert p_worse(lost, 0.0) < p_worse(lost, 0.1) < p_worse(lost, 0.3)


@pytest.mark.parametrize(
    "counts", [(3, 10, 7, 12), (0, 5, 5, 5), (200, 250, 210, 250), (4, 4, 0, 9)]
)
def test_the_probability_that_b_is_better_is_the_integral_over_both_posteriors(
    counts: tuple[int, int, int, int],
) -> None:
    a, n_a, b, n_b = counts
    of_a, of_b = scipy_stats.beta(a + 1, n_a - a + 1), scipy_stats.beta(b + 1, n_b - b + 1)
    expected, _ = integrate.quad(
        lambda p: of_b.pdf(p) * of_a.cdf(p), 0, 1, epsabs=1e-12, points=[a / n_a, b / n_b]
    )
    assert probability_b_better(Independent(*counts)) == pytest.approx(expected, abs=EXACT)


# statsmodels 0.15.0: the d at which power_proportions_2indep(+-d, p, n, alpha=0.05).power is 0.8.
@pytest.mark.parametrize(
    ("n", "rate", "difference"),
    [
        (50, 0.5, 0.2668300498289295),
        (100, 0.8, 0.17859630874126717),
        (500, 0.3, 0.0839537670477927),
    ],
)
def test_the_detectable_difference_is_that_of_statsmodels(
    n: int, rate: float, difference: float
) -> None:
    counts = Independent(round(n * rate), n, 0, n)
    assert detectable_difference(counts) == pytest.approx(difference, abs=1e-4)
    assert needed_for(counts, difference) == pytest.approx(n, rel=2e-3)


def test_a_paired_detectable_difference_is_found_four_times_in_five() -> None:
    n, disagreement = 200, 0.2
    difference = detectable_difference(Paired(160, 20, 20, 0))
    assert difference is not None
    rng = np.random.default_rng(0)
    shares = [(disagreement - difference) / 2, (disagreement + difference) / 2, 1 - disagreement]
    samples = rng.multinomial(n, shares, 4000)
    found = [abs(b - a) >= 1.959964 * np.sqrt(a + b) for a, b, _ in samples]
    assert np.mean(found) == pytest.approx(0.8, abs=0.03)


def test_too_few_episodes_can_show_nothing() -> None:
    assert detectable_difference(Independent(1, 2, 1, 2)) is None
    assert detectable_difference(Paired(0, 1, 0, 1)) is None


# statsmodels 0.15.0: OLS of the outcomes on a constant, cov_type="cluster"; OLS of the rates.
def test_averages_have_standard_errors_clustered_by_task() -> None:
    tasks = [(3, 10), (9, 10), (18, 40), (0, 5), (0, 0)]
    micro, macro = micro_average(tasks), macro_average(tasks)
    assert micro is not None
    assert macro is not None
    assert (micro.rate, micro.stderr) == pytest.approx((0.461538461538, 0.09294274043110942))
    assert (macro.rate, macro.stderr) == pytest.approx((0.4125, 0.1875))


def test_one_task_tells_nothing_of_the_spread_between_tasks() -> None:
    micro, macro = micro_average([(3, 10)]), macro_average([(3, 10)])
    assert micro == macro
    assert micro is not None
    assert micro.stderr is None


def test_clustering_widens_the_error_where_tasks_differ_and_not_where_they_do_not() -> None:
    apart, alike = micro_average([(0, 100), (100, 100)]), micro_average([(50, 100), (50, 100)])
    assert apart is not None
    assert alike is not None
    assert apart.stderr == pytest.approx(0.5)
    assert alike.stderr == 0


def test_holms_correction_is_that_of_statsmodels() -> None:
    """multipletests([0.01, 0.04, 0.03, 0.005, 0.5], method="holm")."""
    expected = [0.04, 0.09, 0.09, 0.025, 0.5]
    assert holm([0.01, 0.04, 0.03, 0.005, 0.5]) == pytest.approx(expected, abs=EXACT)
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_is_between_the_p_value_and_bonferroni(p_values: list[float]) -> None:
    for p, adjusted in zip(p_values, holm(p_values), strict=True):
        assert p <= adjusted <= min(1.0, p * len(p_values)) + EXACT


def test_the_command_line_starts_without_scipy() -> None:
    program = (
        "import sys; from proctor.cli import main; main(['--help']); main(['eval', '--help']);"
        "sys.exit(any(name.split('.')[0] == 'scipy' for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0
