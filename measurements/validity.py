"""The figures of docs/statistics.md, by simulation: python measurements/validity.py (a minute)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np

from proctor.features import Array
from proctor.stats.anytime import anytime_interval
from proctor.stats.differences import Paired, p_value, p_worse
from proctor.stats.rates import (
    Interval,
    Worlds,
    clopper_pearson_interval,
    holm,
    wilson_interval,
)
from proctor.stats.stopping import evidence

ALPHA = 0.05
sure = cache(lambda wins, losses: evidence(wins, losses) >= 2 / ALPHA)
worse = cache(lambda n, a, b, margin: p_worse(Paired(n - a - b, a, b, 0), margin) <= ALPHA)
differs = cache(lambda a, b: p_value(Paired(0, a, b, 0)) <= ALPHA)
equal = cache(lambda a, b: p_value(Paired(0, a, b, 0)))


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


def coverage_when_stopped() -> None:
    print("stop_when, exactly: covers and mean episodes, stopped by Wilson's interval and by ours")
    for width in (0.3, 0.2, 0.1):
        for rate in (0.02, 0.1, 0.3, 0.5):
            figures = [walk(rate, width, way) for way in (wilson, anytime)]
            text = "   ".join(f"{covered:.1%} {used:.0f}" for covered, used in figures)
            print(f"  ci_width<{width:g} at {rate:.0%}: {text}")


Way = Callable[[int, int, float], Interval]


@cache
def wilson(successes: int, n: int, width: float) -> Interval:
    return wilson_interval(successes, n) or (0.0, 1.0)


@cache
def anytime(successes: int, n: int, width: float) -> Interval:
    return anytime_interval(successes, n, width) or (0.0, 1.0)


def walk(rate: float, width: float, way: Way) -> tuple[float, float]:
    """Return how often the interval at the stop covers, and the mean number of episodes."""
    alive, covered, used, n = np.array([1.0]), 0.0, 0.0, 0
    while alive.sum() > 1e-7:
        alive, n = np.convolve(alive, [1 - rate, rate]), n + 1
        alive[alive < 1e-12] = 0.0
        for k in np.flatnonzero(alive).tolist():
            low, high = way(k, n, width)
            if high - low < width:
                covered += alive[k] * (low <= rate <= high)
                used += n * alive[k]
                alive[k] = 0.0
    return covered, used


def repeated_pairs(runs: int = 2000) -> None:
    """Two equal policies without noise: another pair of a world is a copy of the first."""
    rng = np.random.default_rng(2)
    print("eval --against, 50 worlds: false alarms betting on every pair, and once on every world")
    for times in (1, 2, 3, 5):
        alarms = np.zeros(2)
        for _ in range(runs):
            scores = pairs(rng, 0.5, 0.5, 50)
            alarms += [first_look(scores * times)[1] != 0, first_look(scores)[1] != 0]
        every, once = alarms / runs
        print(f"  each world {times} times: {every:.1%} {once:.1%}")


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


def several_runs(times: int = 20_000) -> None:
    """Equal runs, each held against the first: is any called different? And one that is worse?"""
    rng = np.random.default_rng(3)
    rates = np.array([0.15, 0.5, 0.7, 0.95])[:, None]
    print("compare of several runs, 4 tasks x 25 pairs: one called different, alone and by Holm")
    for others in (1, 2, 4, 9):
        loss = np.zeros((others + 1, 1, 1))
        loss[1] = 0.15
        called = np.zeros(3)
        for _ in range(times):
            alike = _against_first(rng.random((others + 1, 4, 25)) < rates)
            lost, *_ = holm(_against_first(rng.random((others + 1, 4, 25)) < rates - loss))
            called += [min(alike) <= ALPHA, min(holm(alike)) <= ALPHA, lost <= ALPHA]
        alone, corrected, found = called / times
        print(f"  {others + 1} equal runs: {alone:.1%} {corrected:.1%}; worse by 15%: {found:.1%}")


def _against_first(won: Array) -> list[float]:
    only_a, only_b = (won[:1] & ~won[1:]).sum((1, 2)), (won[1:] & ~won[:1]).sum((1, 2))
    return [equal(x, y) for x, y in zip(only_a.tolist(), only_b.tolist(), strict=True)]


def gate_over_a_mix() -> None:
    """Some pairs cannot differ, the others always do: the mean difference is the margin."""
    from scipy.stats import binom

    print("compare --fail-if-worse=M, exactly: most false alarms where some pairs cannot differ")
    for n, margin in ((20, 0.05), (20, 0.1), (50, 0.02), (50, 0.1), (100, 0.02)):
        most = 0.0
        for unsure in range(max(5, round(n * margin)), n + 1):
            a = np.arange(unsure + 1)
            alarm = [worse(n, int(x), unsure - int(x), margin) for x in a]
            chance = binom.pmf(a, unsure, (1 + n * margin / unsure) / 2)
            most = max(most, float(chance[alarm].sum()))
        print(f"  {n} pairs, M={margin:g}: {most:.1%}")


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
    coverage_when_stopped()
    gate(generator)
    gate_over_a_mix()
    repeated_worlds()
    repeated_pairs()
    several_runs()
