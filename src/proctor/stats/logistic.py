"""Firth's logistic regression on two factors: which factor explains failures.

The model is ``log odds of failure = task + factor``; the first factor is the reference. Plain
logistic regression has no finite estimate where a factor separates the outcomes, for example if
every episode of a factor failed. Firth (1993) maximises the likelihood times Jeffreys' prior: the
estimates are finite and less biased. The intervals are those of the profile of the same penalised
likelihood (Heinze and Schemper 2002). They are finite too, and longer on the side that the data
leave open. Wald's symmetric intervals are wrong there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from proctor.features import Array
from proctor.stats.rates import Interval

_MAX_STEP = 3.0
"""Largest change of a coefficient in one Newton step, in log odds."""
_TOLERANCE = 1e-6
_ITERATIONS = 200
_ROOT_TOLERANCE = 1e-3
"""Precision of the ends of an interval, in standard errors."""


@dataclass(frozen=True)
class _Point:
    """The penalised likelihood at some coefficients, and its derivatives."""

    tasks: Array  # float64 [tasks]
    factors: Array  # float64 [factors - 1]
    value: float
    """The penalised log likelihood."""
    task_score: Array  # float64 [tasks]
    factor_score: Array  # float64 [factors - 1]
    task_information: Array  # float64 [tasks]: diagonal, since an episode has one task
    shares: Array  # float64 [tasks, factors - 1]: of a task's information
    schur: Array  # float64 [factors - 1, factors - 1]: information of the factors given the tasks


class FactorModel:
    """The fitted model: a log odds ratio of every factor against the first one."""

    def __init__(self, failures: Array, episodes: Array) -> None:
        """Fit the model to counts [tasks, factors], which may be weighted.

        Every task needs episodes of the reference, every factor those of a task.
        """
        assert (episodes[:, 0] > 0).all()
        assert (episodes.sum(axis=0) > 0).all()
        self._failures, self._episodes = failures.astype(float), episodes.astype(float)
        n_tasks, n_factors = episodes.shape
        self._best = self._maximise(np.zeros(n_tasks), np.zeros(n_factors - 1), fixed=None)
        self._errors = np.sqrt(np.diag(np.linalg.inv(self._best.schur)))

    @property
    def log_odds_ratios(self) -> Array:
        """The estimate of every factor but the reference."""
        return self._best.factors

    @property
    def log_likelihood(self) -> float:
        """The penalised log likelihood at the estimates."""
        return self._best.value

    def interval(self, factor: int, confidence: float = 0.95) -> Interval:
        """Return the profile penalised likelihood interval of a log odds ratio."""
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        return self._end(factor, -z), self._end(factor, z)

    def p_value(self, factor: int) -> float:
        """Return the p-value of "the factor changes nothing", by the penalised likelihood ratio."""
        root, _ = self._signed_root(factor, 0.0, self._best)
        return math.erfc(abs(root) / math.sqrt(2))

    def _end(self, factor: int, z: float) -> float:
        """Return the value at which the signed root of the likelihood ratio is ``z``.

        The root rises with the value, almost linearly, so bracketed secant steps find it (the
        Illinois method).
        """
        stride = z * float(self._errors[factor])
        inner, value, warm = (float(self._best.factors[factor]), -z), 0.0, self._best
        while True:  # the penalised likelihood falls without limit, so this ends
            value = inner[0] + stride
            root, warm = self._signed_root(factor, value, warm)
            if (root - z) * z >= 0:
                break
            inner = (value, root - z)
        outer = (value, root - z)
        while abs(root - z) > _ROOT_TOLERANCE and abs(outer[0] - inner[0]) > 1e-9:
            value = (inner[0] * outer[1] - outer[0] * inner[1]) / (outer[1] - inner[1])
            root, warm = self._signed_root(factor, value, warm)
            if (root - z) * z >= 0:
                outer, inner = (value, root - z), (inner[0], inner[1] / 2)
            else:
                inner, outer = (value, root - z), (outer[0], outer[1] / 2)
        return value

    def _signed_root(self, factor: int, value: float, start: _Point) -> tuple[float, _Point]:
        """Return the signed root of twice the log likelihood ratio, and the constrained fit."""
        factors = start.factors.copy()
        factors[factor] = value
        at = self._maximise(start.tasks, factors, fixed=factor)
        ratio = max(0.0, 2 * (self._best.value - at.value))
        return math.copysign(math.sqrt(ratio), value - self._best.factors[factor]), at

    def _maximise(self, tasks: Array, factors: Array, fixed: int | None) -> _Point:
        """Maximise over all coefficients but ``fixed`` by Newton steps that never go down."""
        free = [factor for factor in range(len(factors)) if factor != fixed]
        at = self._evaluate(tasks, factors)
        for _ in range(_ITERATIONS):
            of_factors = np.zeros(len(factors))
            given_tasks = at.factor_score - at.shares.T @ at.task_score
            if free:
                of_factors[free] = np.linalg.solve(at.schur[np.ix_(free, free)], given_tasks[free])
            of_tasks = at.task_score / at.task_information - at.shares @ of_factors
            largest = float(max(np.abs(of_tasks).max(), np.abs(of_factors).max()))
            if largest < _TOLERANCE:
                break
            length = min(1.0, _MAX_STEP / largest)
            new = self._evaluate(at.tasks + length * of_tasks, at.factors + length * of_factors)
            while new.value < at.value and length * largest > _TOLERANCE:
                length /= 2
                new = self._evaluate(at.tasks + length * of_tasks, at.factors + length * of_factors)
            at = new
        return at

    def _evaluate(self, tasks: Array, factors: Array) -> _Point:
        logits = tasks[:, None] + np.concatenate([[0.0], factors])
        p = 0.5 * (1 + np.tanh(logits / 2))
        information = np.maximum(self._episodes * p * (1 - p), self._episodes * 1e-100)
        of_tasks = information.sum(axis=1)
        shares = information[:, 1:] / of_tasks[:, None]
        schur = np.diag(information[:, 1:].sum(axis=0)) - information[:, 1:].T @ shares
        sign, log_det = np.linalg.slogdet(schur)
        covariance = np.linalg.inv(schur) if sign > 0 else np.zeros_like(schur)
        joint = shares @ covariance
        variance = np.repeat((1 / of_tasks + (joint * shares).sum(axis=1))[:, None], p.shape[1], 1)
        variance[:, 1:] += np.diag(covariance) - 2 * joint
        likelihood = self._failures * logits - self._episodes * np.logaddexp(0, logits)
        penalty = (np.log(of_tasks).sum() + log_det) / 2 if sign > 0 else -math.inf
        # Firth's modified score: half an event and half a non-event per unit of leverage.
        score = self._failures - self._episodes * p + information * variance * (0.5 - p)
        return _Point(
            tasks=tasks,
            factors=factors,
            value=float(likelihood.sum() + penalty),
            task_score=score.sum(axis=1),
            factor_score=score[:, 1:].sum(axis=0),
            task_information=of_tasks,
            shares=shares,
            schur=schur,
        )
