"""Run LeRobot's evaluation command unchanged, in LeRobot's Python, with counters and timers.

    python lerobot_side.py COUNTS.json HORIZON VIDEOS ASSETS LEROBOT-EVAL-FLAGS...

LeRobot has no flag for two settings, so this script patches them. HORIZON (0: LeRobot's own) is the
step limit of an episode: Meta-World's is always 500. VIDEOS is the largest number of videos; the
command's own is 10. ASSETS, empty without LIBERO, is the folder of its meshes and textures.

The counters count calls of the simulators: one image for each observation (also of the reset inside
a step that ended an episode) and one for each video frame. For LIBERO they count robosuite's
renders: both cameras at every step, including settling, and none for a video, whose frames are the
observations.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lerobot.scripts import lerobot_eval
from libero_setup import count_images, prepare_libero


@dataclass
class SimulatorCounts:
    """Calls of the simulators in one evaluation."""

    steps: int = 0
    renders: int = 0
    began_at: float = 0.0
    first_step_at: float = 0.0


def watch(env: Any, counts: SimulatorCounts, horizon: int) -> None:
    """Count the calls of one vector environment, and set its step limit."""
    reset, step, call = env.reset, env.step, env.call

    def counted_reset(**options: Any) -> Any:
        counts.began_at = counts.began_at or time.time()
        counts.renders += env.num_envs
        return reset(**options)

    def counted_step(actions: Any) -> Any:
        outcome = step(actions)
        counts.first_step_at = counts.first_step_at or time.time()
        counts.steps += env.num_envs
        _, _, terminated, truncated, _ = outcome
        counts.renders += env.num_envs + int((terminated | truncated).sum())
        return outcome

    def counted_call(name: str, *args: Any, **options: Any) -> Any:
        if name == "_max_episode_steps" and horizon:
            return (horizon,) * env.num_envs
        counts.renders += env.num_envs if name == "render" else 0
        return call(name, *args, **options)

    env.reset, env.step, env.call = counted_reset, counted_step, counted_call
    for single in getattr(env, "envs", ()):  # in this process: rendered one by one
        single.render = counted(single.render, counts)


def counted(render: Callable[[], Any], counts: SimulatorCounts) -> Callable[[], Any]:
    """Return ``render`` with a counter."""

    def counted_render() -> Any:
        counts.renders += 1
        return render()

    return counted_render


def evaluate(horizon: int, videos: int) -> SimulatorCounts:
    """Run LeRobot's command with the remaining flags of sys.argv."""
    counts = SimulatorCounts()
    make_env, eval_policy_all = lerobot_eval.make_env, lerobot_eval.eval_policy_all

    def watched_envs(*args: Any, **options: Any) -> Any:
        envs = make_env(*args, **options)
        for group in envs.values():
            for env in group.values():
                watch(env, counts, horizon)
        return envs

    def with_videos(*args: Any, **options: Any) -> Any:
        return eval_policy_all(*args, **{**options, "max_episodes_rendered": videos})

    lerobot_eval.make_env = watched_envs
    lerobot_eval.eval_policy_all = with_videos
    lerobot_eval.main()
    return counts


def evaluate_libero(assets: Path, horizon: int, videos: int) -> SimulatorCounts:
    """Run LeRobot's command with LIBERO's ``assets``."""
    with tempfile.TemporaryDirectory() as settings:
        prepare_libero(assets, Path(settings))
        images = count_images()
        return replace(evaluate(horizon, videos), renders=images.rendered)


def main(seen_file: Path, horizon: int, videos: int, assets: str) -> None:
    """Evaluate, and write the counts as JSON."""
    run = partial(evaluate_libero, Path(assets)) if assets else evaluate
    counts = run(horizon, videos)
    seen_file.write_text(json.dumps(asdict(counts)))


if __name__ == "__main__":
    seen_file, horizon, videos, assets = sys.argv[1:5]
    del sys.argv[1:5]
    main(Path(seen_file), int(horizon), int(videos), assets)
