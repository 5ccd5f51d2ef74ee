"""The stop rule for interleaved policies: rare false alarms, quick for large differences."""

from __future__ import annotations

import numpy as np
import pytest

from proctor.stats.best_policy import BestPolicy
from proctor.types import Outcome

MOST_BLOCKS = 100


def trials_until_decided(rates: list[float], seed: int) -> tuple[int | None, int]:
    """Run blocks of a fake robot; return the policy declared the best, and the blocks used."""
    rng = np.random.default_rng(seed)
    rule = BestPolicy([f"p{i}" for i in range(len(rates))], alpha=0.05)
    for block in range(1, MOST_BLOCKS + 1):
        hits = rng.random(len(rates)) < rates
        rule.on_block_end([Outcome.SUCCESS if hit else Outcome.FAILURE for hit in hits])
        if rule.decision is not None:
            return rule.best, block
    return None, MOST_BLOCKS


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_a_against_a_is_rarely_decided(rate: float) -> None:
    alarms = sum(trials_until_decided([rate, rate], seed)[0] is not None for seed in range(200))
    assert alarms <= 17


def test_three_equal_policies_are_rarely_decided() -> None:
    alarms = sum(trials_until_decided([0.5] * 3, seed)[0] is not None for seed in range(200))
    assert alarms <= 17


def test_the_better_of_two_is_found_quickly() -> None:
    found = [trials_until_decided([0.5, 0.9], seed) for seed in range(200)]
    assert sum(best == 1 for best, _ in found) >= 190
    assert sum(best == 0 for best, _ in found) <= 5
    assert np.median([blocks for _, blocks in found]) <= 30


def test_the_best_must_beat_every_other() -> None:
    rule = BestPolicy(["a", "b", "c"], alpha=0.05)
    for _ in range(20):
        rule.on_block_end([Outcome.SUCCESS, Outcome.FAILURE, Outcome.SUCCESS])
    assert rule.best is None
    for _ in range(20):
        rule.on_block_end([Outcome.SUCCESS, Outcome.FAILURE, Outcome.FAILURE])
    assert rule.best == 0
    assert rule.decision is not None
    assert rule.decision.startswith("a is better")


def test_one_policy_is_never_the_best() -> None:
    rule = BestPolicy(["a"], alpha=0.05)
    for _ in range(50):
        rule.on_block_end([Outcome.SUCCESS])
    assert rule.decision is None
