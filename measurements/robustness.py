"""Coverage of the intervals of robustness: drops, odds ratios, differences between two drops.

    python -m measurements robustness            # about two minutes on one core
    python -m measurements robustness --tiny

Outcomes are simulated coins whose starts differ in difficulty. Seeds are fixed, so the results do
not depend on the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from proctor.stats.differences import difference_interval, effective_pairs
from proctor.stats.drop_difference import DropDifference
from proctor.stats.logistic import FactorModel

DROPS = [
    (starts, repeats, clean, perturbed, spread, copies)
    for starts, repeats in ((12, 3), (20, 3), (50, 3), (40, 25))
    for clean, perturbed, spread in ((2.0, 1.0, 1.0), (2.0, 2.0, 0.3), (4.0, -1.0, 1.0))
    for copies in (False, True)
]
"""Starts, perturbed episodes of each, log odds of success, spread between starts, copies or not."""
ODDS = (
    (1.2, (-2.5, -1.0, 0.5), 8),
    (0.0, (-3.0, -1.0, 1.0), 8),
    (2.5, (-3.0, -2.0, -1.0), 6),
    (0.8, (0.0,), 20),
)
"""True log odds ratio, log odds of failure of the clean tasks, episodes of each."""
TWO = [
    (n, a, b, spread)
    for n in (20, 50, 100)
    for a, b, spread in (
        ((1.5, 0.5), (1.5, 0.5), 1.5),
        ((2.5, 1.5), (3.0, -0.5), 1.5),
        ((4.0, 4.0), (4.0, 2.0), 1.0),
        ((0.0, -1.0), (1.0, -3.0), 2.0),
        ((6.0, 6.0), (6.0, 6.0), 0.5),
    )
]
"""Pairs, (clean, perturbed) log odds of success of A and of B, spread between starts."""


def probability(log_odds: Any) -> Any:
    """Return the probability of log odds."""
    return 1 / (1 + np.exp(-log_odds))


def mean_rate(log_odds: float, spread: float) -> float:
    """Return the success rate over all starts."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    return float((weights * probability(log_odds + spread * nodes)).sum() / weights.sum())


def covered(runs: int, one: Callable[[Any, Any], bool], setting: Any) -> float:
    """Return the share of simulated runs of a setting for which ``one`` is true."""
    rng = np.random.default_rng(0)
    return sum(one(rng, setting) for _ in range(runs)) / runs


def drop_is_covered(rng: Any, setting: tuple[Any, ...]) -> bool:
    """Simulate a total over several perturbations, and look at its interval."""
    starts, repeats, clean, perturbed, spread, copies = setting
    shift = spread * rng.normal(size=starts)
    solved = rng.random(starts) < probability(clean + shift)
    shape = (starts, 1) if copies else (starts, repeats)
    kept = rng.random(shape) < probability(perturbed + shift)[:, None]
    kept = np.broadcast_to(kept, (starts, repeats))
    interval = difference_interval(
        effective_pairs(
            [[(bool(one), bool(own)) for one in row] for row, own in zip(kept, solved, strict=True)]
        )
    )
    assert interval is not None
    return interval[0] <= mean_rate(clean, spread) - mean_rate(perturbed, spread) <= interval[1]


def odds_are_covered(rng: Any, setting: tuple[Any, ...]) -> bool:
    """Simulate tasks with and without a perturbation, and look at the odds ratio's interval."""
    true, tasks, n = setting
    episodes = np.full((len(tasks), 2), n)
    failures = rng.binomial(episodes, probability(np.array(tasks)[:, None] + [0.0, true]))
    low, high = FactorModel(failures, episodes).interval(0)
    return bool(low <= true <= high)


def two_drops(rng: Any, setting: tuple[Any, ...]) -> tuple[bool, bool]:
    """Simulate two policies; return whether the interval covers, and whether the test rejects."""
    n, a, b, spread = setting
    shift = spread * rng.normal(size=n)
    sides = [[rng.random(n) < probability(odds + shift) for odds in of] for of in (a, b)]
    found = DropDifference()
    for start in range(n):
        found.add(start, *(int(clean[start]) - int(kept[start]) for clean, kept in sides))
    interval = found.interval()
    assert interval is not None
    rates = [[mean_rate(odds, spread) for odds in of] for of in (a, b)]
    true = (rates[1][0] - rates[1][1]) - (rates[0][0] - rates[0][1])
    return interval[0] <= true <= interval[1], found.p_value <= 0.05


def main(words: Sequence[str]) -> None:
    """Print the coverage of every setting."""
    parser = argparse.ArgumentParser(prog="python -m measurements robustness")
    parser.add_argument("--tiny", action="store_true", help="5 runs of each setting")
    runs = 5 if parser.parse_args(words).tiny else 600
    print(f"{runs} simulated runs of each setting, 95% intervals")
    for setting in DROPS:
        print(f"drop {setting}: {covered(runs, drop_is_covered, setting):.3f}")
    for odds in ODDS:
        print(f"odds {odds}: {covered(runs, odds_are_covered, odds):.3f}")
    for two in TWO:
        rng = np.random.default_rng(0)
        found = [two_drops(rng, two) for _ in range(runs)]
        cover, reject = (sum(column) / runs for column in zip(*found, strict=True))
        print(f"two drops {two}: {cover:.3f}, rejected {reject:.3f}")
