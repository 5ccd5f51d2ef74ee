"""`make demo`: a real evaluation of Meta-World's scripted experts on five tasks."""

from __future__ import annotations

import sys
import time

from proctor.cli import main

TASKS = "reach-v3,push-v3,drawer-open-v3,button-press-v3,peg-insert-side-v3"

if __name__ == "__main__":
    words = [
        "eval",
        "--policy.type=expert",
        "--env.type=metaworld",
        f"--env.task={TASKS}",
        "--eval.n_episodes=20",
        time.strftime("--output_dir=outputs/demo/%Y-%m-%d_%H-%M-%S"),
    ]
    print("proctor", *words, flush=True)
    sys.exit(main(words))
