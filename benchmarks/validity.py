"""The figures of docs/statistics.md, by simulation: python benchmarks/validity.py (a minute)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import count

import numpy as np

from proctor.report.differences import Paired, p_value, p_worse
from proctor.report.sequential import evidence
from proctor.report.statistics import Worlds, clopper_pearson_interval, wilson_interval

ALPHA = 0.05
sure = cache(lambda wins, losses: evidence(wins, losses) >= 2 / ALPHA)
worse = cache(lambda n, a, b, margin: p_worse(Paired(n - a - b, a, b, 0), margin) <= ALPHA)
differs = cache(lambda a, b: p_value(Paired(0, a, b, 0)) <= ALPHA)


def first_look(scores: Iterable[int]) -> tuple[int, int]:
    """Return at which pair, of +1 (B won), 0 and -1, the test decides, and for whom (0: nobody)."""
    wins = losses = place = 0
    for place, score in enumerate(scores, start=1):
        wins, losses = wins + (score > 0), losses + (score < 0)
        if score and (sure(wins, losses) or sure(losses, wins)):
            return place, score
    return place, 0


def pairs(rng: np.random.Generator, a: float, b: float, n: int) -> list[int]:
    scores: list[int] = ((rng.random(n) < b).astype(int) - (rng.random(n) < a)).tolist()
    return scores


def sequential(rng: np.random.Generator) -> None:
    print("eval --against, alpha 0.05, budget 500 pairs: decided right, wrong, mean pairs used")
    for a, b, n in ((0.5, 0.5, 2000), (0.9, 0.9, 2000), (0.5, 0.6, 500), (0.5, 0.7, 500),
                    (0.8, 0.9, 500), (0.2, 0.9, 500)):  # fmt: skip
        looks = [first_look(pairs(rng, a, b, 500)) for _ in range(n)]
        right = np.mean([who > 0 and b > a for _, who in looks])
        wrong = np.mean([who != 0 and (who < 0 or b == a) for _, who in looks])
        used = np.mean([place for place, _ in looks])
        print(f"  A {a:.0%} B {b:.0%}: {right:6.1%} {wrong:6.2%} {used:6.0f}")


def as_they_end(rng: np.random.Generator) -> None:
    """Equal policies, 64 episodes at once; successes end first."""
    alarms = 0
    for _ in range(1000):
        a, b = rng.random(64) < 0.5, rng.random(64) < 0.5
        order = np.lexsort((rng.random(64), ~b))
        alarms += first_look((b.astype(int) - a)[order].tolist())[1] != 0
    print(f"the same test on episodes as they end, 64 at once: {alarms / 1000:.1%} false alarms")


def peeking(rng: np.random.Generator) -> None:
    alarms = 0
    for _ in range(1000):
        wins = losses = 0
        for score in pairs(rng, 0.5, 0.5, 500):
            wins, losses = wins + (score > 0), losses + (score < 0)
            if differs(wins, losses):
                alarms += 1
                break
    print(f"McNemar's test after every pair, 500 pairs: {alarms / 1000:.1%} false alarms")


def coverage_when_stopped(rng: np.random.Generator) -> None:
    print("stop_when, 1000 runs: 95% Wilson interval covers, mean episodes")
    for width, rates in ((0.2, (0.05, 0.5, 0.9)), (0.1, (0.05, 0.5, 0.9)), (0.05, (0.05, 0.9))):
        for rate in rates:
            runs = [run_until(rng, width, rate) for _ in range(1000)]
            inside = np.mean([low <= rate <= high for _, low, high in runs])
            used = np.mean([n for n, *_ in runs])
            print(f"  ci_width<{width:g} at {rate:.0%}: {inside:.1%} {used:.0f}")


interval = cache(wilson_interval)


def run_until(rng: np.random.Generator, width: float, rate: float) -> tuple[int, float, float]:
    successes = 0
    for n in count(1):
        successes += bool(rng.random() < rate)
        ends = interval(successes, n)
        assert ends is not None
        if ends[1] - ends[0] < width:
            return n, *ends
    raise AssertionError


def repeated_worlds(runs: int = 4000) -> None:
    """Half of the worlds are solved; an episode of a world is a copy of it, or resembles it."""
    rng = np.random.default_rng(1)
    print("worlds that repeat, 50 worlds: 95% intervals cover, by episodes and by worlds")
    for repeats in ([3] * 50, [2] * 20 + [1] * 30):
        played = np.repeat(np.arange(50), repeats)
        worlds = Worlds(("", 0, str(world)) for world in played)
        for alike in (1.0, 0.5, 0.0):
            inside = np.zeros(2)
            for _ in range(runs):
                solved = rng.random(50) < 0.5
                copied = rng.random(len(played)) < alike**0.5
                won = np.where(copied, solved[played], rng.random(len(played)) < 0.5)
                for place, worth in enumerate((None, worlds.effective_n)):
                    ends = wilson_interval(int(won.sum()), len(won), effective_n=worth)
                    inside[place] += ends is not None and ends[0] <= 0.5 <= ends[1]
            by_episodes, by_worlds = inside / runs
            print(f"  n={len(played)}, correlation {alike:g}: {by_episodes:.1%} {by_worlds:.1%}")


def gate(rng: np.random.Generator, runs: int = 20_000) -> None:
    print("compare --fail-if-worse, 4 tasks x 25 pairs: alarms where B is worse by")
    rates = np.array([0.15, 0.5, 0.7, 0.95])
    for margin in (0.0, 0.02):
        for loss in (0.0, margin, 0.1, 0.15) if margin else (0.0, 0.1, 0.15):
            a = rng.random((runs, 4, 25)) < rates[:, None]
            b = rng.random((runs, 4, 25)) < (rates - loss)[:, None]
            only_a, only_b = (a & ~b).sum((1, 2)).tolist(), (b & ~a).sum((1, 2)).tolist()
            alarms = [worse(100, x, y, margin) for x, y in zip(only_a, only_b, strict=True)]
            print(f"  margin {margin:.0%}, worse by {loss:.0%}: {np.mean(alarms):.1%}")


def coverage_by_enumeration(n: int, rates: Sequence[float]) -> None:
    from scipy.stats import binom

    for method in (wilson_interval, clopper_pearson_interval):
        ends = [method(k, n) or (0, 1) for k in range(n + 1)]
        covered = [
            sum(binom.pmf(k, n, p) for k, (low, high) in enumerate(ends) if low <= p <= high)
            for p in rates
        ]
        print(f"{method.__name__} n={n}: covers {np.mean(covered):.1%}, least {min(covered):.1%}")


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    coverage_by_enumeration(50, np.linspace(0.005, 0.995, 199).tolist())
    sequential(generator)
    as_they_end(generator)
    peeking(generator)
    coverage_when_stopped(generator)
    gate(generator)
    repeated_worlds()
