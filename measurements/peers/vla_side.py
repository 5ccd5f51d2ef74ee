"""Run LIBERO with vla-eval without a container, and log the calls of its simulator.

    python vla_side.py LOG.json FOLDER ASSETS SUITE EPISODES HORIZON CHUNK SEED

Runs the suite's first task through vla-eval's Python function: its orchestrator, its model server
with its action queue, and the websocket between them, in one process. vla-eval's own records go to
FOLDER. The model receives both cameras and the state and returns the actions of fixed_actions.py.
Runs in vla-eval's venv.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import vla_eval
from fixed_actions import chunk_of_actions
from libero_setup import count_images, prepare_libero
from vla_eval.benchmarks.libero.benchmark import LIBEROBenchmark
from vla_eval.model_servers.predict import PredictModelServer


class FixedActionServer(PredictModelServer):  # type: ignore[misc]  # not installed in our venv
    """Returns the same actions as our policy; one episode at a time."""

    episode = 0

    async def on_episode_start(self, config: Any, ctx: Any) -> None:
        """Store which episode it is."""
        self.episode = config["task"]["episode_idx"]
        await super().on_episode_start(config, ctx)

    def predict(self, obs: Any, ctx: Any) -> dict[str, Any]:
        """Return the chunk of this step."""
        assert set(obs["images"]) == {"agentview", "wrist"}
        return {"actions": chunk_of_actions(self.episode, ctx.step, self.chunk_size)}

    def get_observation_params(self) -> dict[str, Any]:
        """Request the observations that our policy uses."""
        return {"send_wrist_image": True, "send_state": True}


@dataclass
class Played:
    """One executed episode."""

    rewards: list[float] = field(default_factory=list)
    success: bool = False
    start: bytes = b""
    steps_hash: bytes = b""
    end: bytes = b""

    def add(self, result: Any, world: bytes) -> None:
        """Add one step and the state after it."""
        self.rewards.append(float(result.reward))
        self.success |= bool(result.done)
        self.steps_hash += struct.pack("<d?", float(result.reward), bool(result.done))
        self.end = world

    def summary(self) -> dict[str, Any]:
        """Return the episode as our journal has it, with the journal's digest."""
        digest = hashlib.blake2b(self.start + self.steps_hash + self.end, digest_size=16)
        return {
            "success": self.success,
            "sum_reward": sum(self.rewards),
            "max_reward": max(self.rewards),
            "digest": digest.hexdigest(),
        }


@dataclass
class EpisodeLog:
    """Calls of the simulator in one evaluation."""

    began_at: float = 0.0
    first_step_at: float = 0.0
    played: list[Played] = field(default_factory=list)


def world_of(benchmark: Any) -> bytes:
    """Return the simulator's state as our digests use it (proctor.benchmarks.mujoco.world)."""
    data = benchmark._env.sim.data
    parts = (data.qpos, data.qvel, data.xpos, data.xquat, data.site_xpos)
    return b"".join(part.tobytes() for part in parts)


def watch(log: EpisodeLog) -> None:
    """Log every episode and step of vla-eval's LIBERO."""
    reset, step = LIBEROBenchmark.reset, LIBEROBenchmark.step

    def watched_reset(benchmark: Any, task: Any) -> Any:
        log.began_at = log.began_at or time.time()
        observed = reset(benchmark, task)
        log.played.append(Played(start=world_of(benchmark)))
        return observed

    def watched_step(benchmark: Any, action: Any) -> Any:
        result = step(benchmark, action)
        log.first_step_at = log.first_step_at or time.time()
        log.played[-1].add(result, world_of(benchmark))
        return result

    LIBEROBenchmark.reset, LIBEROBenchmark.step = watched_reset, watched_step


def evaluate(
    folder: Path, suite: str, n_episodes: int, horizon: int, chunk: int, seed: int
) -> None:
    """Evaluate with vla-eval.

    Raises:
        SystemExit: an episode ended with an error; vla-eval itself would continue.
    """
    entry = {
        "benchmark": "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark",
        "episodes_per_task": n_episodes,
        "max_steps": horizon,
        "max_tasks": 1,
        "params": {"suite": suite, "seed": seed},
    }
    config = {"benchmarks": [entry], "output_dir": str(folder)}
    (result,) = vla_eval.evaluate(FixedActionServer(chunk_size=chunk), config, docker=False)
    for task in result["tasks"]:
        for episode in task["episodes"]:
            if episode.get("failure_reason"):
                raise SystemExit(episode["failure_detail"])


def main(seen_file: Path, folder: Path, assets: Path, suite: str, *numbers: int) -> None:
    """Evaluate, and write the log as JSON."""
    log = EpisodeLog()
    with tempfile.TemporaryDirectory() as settings:
        prepare_libero(assets, Path(settings))
        images = count_images()
        watch(log)
        evaluate(folder, suite, *numbers)
    told = {
        "steps": sum(len(played.rewards) for played in log.played),
        "renders": images.rendered,
        "began_at": log.began_at,
        "first_step_at": log.first_step_at,
        "episodes": [played.summary() for played in log.played],
    }
    seen_file.write_text(json.dumps(told))


if __name__ == "__main__":
    seen_file, folder, assets, suite, *numbers = sys.argv[1:]
    main(Path(seen_file), Path(folder), Path(assets), suite, *map(int, numbers))
