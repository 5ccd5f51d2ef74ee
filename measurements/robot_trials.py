"""False alarms and length of blind trials on a robot, by a fake loop of the session's own parts.

    python -m measurements robot_trials [--repeats=200] [--blocks=100] [--tiny]

Each repeat draws the order, plays the trials by coin flips, and stops as ``proctor eval`` does.
A and A have equal rates: every decision is a false alarm (at most 5% by design).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median

import numpy as np

from measurements.command import machine, make_parser
from proctor.config.robot_evaluation import RobotEvalConfig, TrialSettings
from proctor.control.trials.plan import TrialStopping, draw_trials, remaining_trials
from proctor.policies.base import PolicyConfig
from proctor.robots.base import RobotConfig
from proctor.types import Outcome, Task

RATES = ((0.5, 0.5), (0.8, 0.8), (0.5, 0.5, 0.5), (0.5, 0.9), (0.7, 0.9), (0.5, 0.5, 0.9))


def play(rates: Sequence[float], blocks: int, seed: int) -> tuple[int | None, int]:
    """Return the policy that is declared the best (None: undecided), and the trials used."""
    settings = TrialSettings(n_episodes=blocks)
    config = RobotEvalConfig(PolicyConfig(), RobotConfig(), eval=settings, seed=seed)
    names = [f"p{number}" for number in range(len(rates))]
    stopping = TrialStopping(config, Task("fake", 0, "fake", "", 1, 1), names)
    trials = draw_trials(len(rates), blocks, seed)
    rng = np.random.default_rng([seed, 1])
    done: set[tuple[int, int]] = set()
    while left := remaining_trials(trials, done, decided=stopping.decision is not None):
        trial = left[0]
        success = rng.random() < rates[trial.policy]
        outcome = Outcome.SUCCESS if success else Outcome.FAILURE
        stopping.add(trial.block, trial.policy, outcome)
        done.add((trial.block, trial.policy))
    decided = stopping.decision
    best = None if decided is None else names.index(decided.split()[0])
    return best, len(done)


def measure(rates: Sequence[float], blocks: int, repeats: int) -> dict[str, object]:
    """Return how often each policy was declared the best, and how many trials that took."""
    found = [play(rates, blocks, seed) for seed in range(repeats)]
    top = max(rates)
    tied = list(rates).count(top) > 1
    wrong = sum(best is not None and (tied or rates[best] < top) for best, _ in found)
    right = sum(best is not None for best, _ in found) - wrong
    return {
        "rates": list(rates),
        "repeats": repeats,
        "most_blocks": blocks,
        "right": right,
        "wrong": wrong,
        "median_trials_per_policy": median(trials for _, trials in found) / len(rates),
    }


def main(words: Sequence[str]) -> None:
    """Measure every set of rates; print the machine and one line of JSON for each."""
    parser = make_parser("robot_trials", __doc__)
    parser.add_argument("--repeats", type=int, default=200, help="sessions of each set of rates")
    parser.add_argument("--blocks", type=int, default=100, help="most trials of each policy")
    args = parser.parse_args(words)
    repeats, blocks = (5, 10) if args.tiny else (args.repeats, args.blocks)
    print(machine())
    for rates in RATES:
        print(json.dumps(measure(rates, blocks, repeats)))
