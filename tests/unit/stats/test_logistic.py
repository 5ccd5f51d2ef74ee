"""Firth's logistic regression: estimates, finite intervals and their coverage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from proctor.stats.logistic import FactorModel


def test_one_task_and_one_factor_add_half_to_every_count() -> None:
    """Firth's estimate of a 2 x 2 table is the log odds ratio with 1/2 added to each cell."""
    model = FactorModel(np.array([[3, 8]]), np.array([[10, 12]]))
    expected = np.log(8.5 / 4.5) - np.log(3.5 / 7.5)
    assert model.log_odds_ratios == pytest.approx([expected], abs=1e-6)


def penalised(theta: Any, failures: Any, episodes: Any) -> float:
    """Return the penalised log likelihood from a full design matrix."""
    tasks, factors = episodes.shape
    at = [(task, factor) for task in range(tasks) for factor in range(factors)]
    design = np.zeros((len(at), tasks + factors - 1))
    for row, (task, factor) in enumerate(at):
        design[row, task] = 1
        if factor:
            design[row, tasks + factor - 1] = 1
    logits = design @ theta
    p, n, k = 1 / (1 + np.exp(-logits)), episodes.ravel(), failures.ravel()
    information = design.T @ ((n * p * (1 - p))[:, None] * design)
    log_det = np.linalg.slogdet(information)[1]
    return float(k @ logits - n @ np.logaddexp(0, logits) + log_det / 2)


FAILURES = np.array([[1.0, 4.0, 0.0], [0.0, 5.0, 2.0]])
EPISODES = np.array([[6.0, 5.0, 4.0], [5.0, 5.0, 0.0]])
FAILURES[1, 2] = 0  # no episodes there


def test_estimates_and_intervals_are_those_of_a_general_optimiser() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    model = FactorModel(FAILURES, EPISODES)

    def best(fixed: float | None) -> Any:
        def loss(free: Any) -> float:
            theta = free if fixed is None else np.insert(free, 2, fixed)
            return -penalised(theta, FAILURES, EPISODES)

        return optimize.minimize(loss, np.zeros(4 if fixed is None else 3), tol=1e-8)

    whole = best(None)
    assert model.log_odds_ratios == pytest.approx(whole.x[2:], abs=1e-4)
    assert model.log_likelihood == pytest.approx(-whole.fun, abs=1e-7)
    for end in model.interval(0):  # half of the 95% quantile of chi-squared with 1 degree
        assert best(end).fun - whole.fun == pytest.approx(3.8415 / 2, abs=4e-3)


def test_separated_outcomes_have_finite_estimates_and_intervals() -> None:
    model = FactorModel(np.array([[0, 20, 0], [0, 20, 0]]), np.full((2, 3), 20))
    low, high = model.interval(0)
    assert 3 < low < model.log_odds_ratios[0] < high < 20
    assert high - model.log_odds_ratios[0] > model.log_odds_ratios[0] - low, "longer where open"
    low, high = model.interval(1)
    assert low < 0 < high, "two factors without a failure do not differ"
    assert model.p_value(1) == pytest.approx(1, abs=1e-6)


def test_intervals_cover_the_true_odds_ratio() -> None:
    rng, true = np.random.default_rng(0), 1.2
    tasks = np.array([-2.5, -1.0, 0.5])
    p = 1 / (1 + np.exp(-(tasks[:, None] + [0.0, true])))
    episodes, covered, runs = np.full((3, 2), 8), 0, 60
    for _ in range(runs):
        low, high = FactorModel(rng.binomial(episodes, p), episodes).interval(0)
        covered += low <= true <= high
    assert covered / runs >= 0.88
