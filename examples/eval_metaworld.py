"""Evaluate Meta-World's scripted experts from Python: `python examples/eval_metaworld.py`."""

from __future__ import annotations

import time

import proctor

run = proctor.evaluate(
    policy={"type": "expert"},
    env={"type": "metaworld", "task": "reach-v3,push-v3"},
    eval={"n_episodes": 10},
    output_dir=time.strftime("outputs/example/%Y-%m-%d_%H-%M-%S"),
    seed=1000,
)
print(f"success {run} -> {run.path}")
for row in run.rows:
    print(f"{row.task:<10} seed {row.seed}  {row.outcome.value:<8} {row.steps:>4} steps")
