"""Evaluate Meta-World's scripted experts from Python: `python examples/eval_metaworld.py`."""

from __future__ import annotations

import time

import proctor

run = proctor.evaluate(
    "expert",
    "metaworld",
    task=["reach-v3", "push-v3"],
    n_episodes=10,
    output_dir=time.strftime("outputs/example/%Y-%m-%d_%H-%M-%S"),
    seed=1000,
)
print(f"success {run} -> {run.path}")
for one in run.per_task:
    print(one)
for row in run.episodes:
    print(f"{row.task:<10} seed {row.seed}  {row.outcome.value:<8} {row.steps:>4} steps")
