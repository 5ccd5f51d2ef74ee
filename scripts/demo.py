"""`make demo`: a real evaluation of Meta-World's scripted experts on five tasks."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from proctor.cli import main
from proctor.runs.folder import make_new_folder

TASKS = "reach-v3,push-v3,drawer-open-v3,button-press-v3,peg-insert-side-v3"

if __name__ == "__main__":
    folder = make_new_folder(Path("outputs", "demo", time.strftime("%Y-%m-%d_%H-%M-%S")))
    words = [
        "eval",
        "--policy.type=expert",
        "--env.type=metaworld",
        f"--env.task={TASKS}",
        "--eval.n_episodes=20",
        f"--output_dir={folder}",
    ]
    print("proctor", *words, flush=True)
    sys.exit(main(words))
