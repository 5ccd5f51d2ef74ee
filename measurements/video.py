"""What one video per task adds to a run of 10 episodes per task, as a ratio in one run.

    python measurements/video.py [--env=fake|metaworld] [--tasks=reach-v3,push-v3] [--episodes=10]
                               [--length=500] [--size=480]

The policy consumes pixels and replans every 10 steps; every episode fails, so each task is filmed
over its full length. Run: the first phase, from the first episode's start to the last one's end;
filming: all that comes after it.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.run import prepare, run_evaluation
from proctor.machine.system import git_commit, usable_cores
from proctor.recorders.base import Recorder

OPTIONS = {
    "env": "metaworld",
    "tasks": "reach-v3,push-v3",
    "episodes": "10",
    "length": "500",
    "size": "480",
}


def settings_of(options: dict[str, str], folder: str) -> dict[str, Any]:
    shared = {
        "policy.type": "random",
        "policy.inputs": "observation.image",
        "policy.n_action_steps": 10,
        "env.type": options["env"],
        "env.episode_length": options["length"],
        "eval.n_episodes": options["episodes"],
        "eval.batch_size": usable_cores(),
        "video.episodes": 1,
        "output_dir": folder,
    }
    if options["env"] == "fake":
        n_tasks = len(options["tasks"].split(","))
        own = {
            "env.endless": True,
            "env.n_tasks": n_tasks,
            "env.image_size": options["size"],
            "env.step_ms": 2,
        }
    else:
        own = {
            "env.task": options["tasks"],
            "env.observation_height": options["size"],
            "env.observation_width": options["size"],
        }
    return shared | own


def main(words: list[str]) -> None:
    options = OPTIONS | dict(word.removeprefix("--").split("=", 1) for word in words)
    moments: list[float] = []

    def note_the_time(episodes: int) -> list[Recorder]:
        moments.append(time.monotonic())
        return []

    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(options, str(Path(folder, "run")))
        prepared = prepare(build(EvalConfig, settings))
        start = time.monotonic()
        evaluation = run_evaluation(prepared, settings, film_recorders=note_the_time)
        end = time.monotonic()
        size = sum(path.stat().st_size for path in evaluation.path.glob("videos/*/*.mp4"))
    run_s, filming_s = moments[0] - start, end - moments[0]
    report = {
        "options": options,
        "episodes": len(evaluation.rows),
        "videos": evaluation.filmed.videos,
        "warnings": evaluation.filmed.warnings,
        "kB_per_video": round(size / 1000 / max(1, evaluation.filmed.videos)),
        "run_s": round(run_s, 1),
        "filming_s": round(filming_s, 1),
        "added": f"{filming_s / run_s:.1%}",
        "cores": usable_cores(),
        "machine": platform.platform(),
        "commit": git_commit(),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
