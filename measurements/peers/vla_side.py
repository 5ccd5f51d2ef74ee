"""Runs LIBERO with vla-eval without a container, and writes down what its simulator was asked.

    python vla_side.py SEEN.json FOLDER ASSETS SUITE EPISODES HORIZON CHUNK SEED

The suite's first task, through vla-eval's own function for use from Python: its orchestrator, its
model server with its queue of action chunks, and the websocket between them, in one process. What
it records by default goes into FOLDER. The model looks at both cameras and the state and plays the
actions of same_actions.py. Runs in vla-eval's venv.
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
from libero_there import count_pictures, prepare_libero
from same_actions import chunk_of_actions
from vla_eval.benchmarks.libero.benchmark import LIBEROBenchmark
from vla_eval.model_servers.predict import PredictModelServer


class SameActions(PredictModelServer):  # type: ignore[misc]  # not installed in our venv
    """Plays the same actions as the policy on our side; one episode at a time."""

    episode = 0

    async def on_episode_start(self, config: Any, ctx: Any) -> None:
        """Take note of which episode it is."""
        self.episode = config["task"]["episode_idx"]
        await super().on_episode_start(config, ctx)

    def predict(self, obs: Any, ctx: Any) -> dict[str, Any]:
        """Return the chunk of this step."""
        assert set(obs["images"]) == {"agentview", "wrist"}
        return {"actions": chunk_of_actions(self.episode, ctx.step, self.chunk_size)}

    def get_observation_params(self) -> dict[str, Any]:
        """Ask for what the policy on our side looks at."""
        return {"send_wrist_image": True, "send_state": True}


@dataclass
class Played:
    """One episode."""

    rewards: list[float] = field(default_factory=list)
    success: bool = False
    start: bytes = b""
    steps_hash: bytes = b""
    end: bytes = b""

    def add(self, result: Any, world: bytes) -> None:
        """Take note of one step and of the world after it."""
        self.rewards.append(float(result.reward))
        self.success |= bool(result.done)
        self.steps_hash += struct.pack("<d?", float(result.reward), bool(result.done))
        self.end = world

    def summary(self) -> dict[str, Any]:
        """Return it as our journal has it, with the journal's digest."""
        digest = hashlib.blake2b(self.start + self.steps_hash + self.end, digest_size=16)
        return {
            "success": self.success,
            "sum_reward": sum(self.rewards),
            "max_reward": max(self.rewards),
            "digest": digest.hexdigest(),
        }


@dataclass
class EpisodeLog:
    """What one evaluation asked of its simulator."""

    began_at: float = 0.0
    first_step_at: float = 0.0
    played: list[Played] = field(default_factory=list)


def world_of(benchmark: Any) -> bytes:
    """Return where the world is, as our digests see it (proctor.benchmarks.mujoco.world)."""
    data = benchmark._env.sim.data
    parts = (data.qpos, data.qvel, data.xpos, data.xquat, data.site_xpos)
    return b"".join(part.tobytes() for part in parts)


def watch(log: EpisodeLog) -> None:
    """Take note of every episode and step of vla-eval's LIBERO."""
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
        SystemExit: an episode ended with an error; vla-eval itself goes on.
    """
    entry = {
        "benchmark": "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark",
        "episodes_per_task": n_episodes,
        "max_steps": horizon,
        "max_tasks": 1,
        "params": {"suite": suite, "seed": seed},
    }
    config = {"benchmarks": [entry], "output_dir": str(folder)}
    (result,) = vla_eval.evaluate(SameActions(chunk_size=chunk), config, docker=False)
    for task in result["tasks"]:
        for episode in task["episodes"]:
            if episode.get("failure_reason"):
                raise SystemExit(episode["failure_detail"])


def main(seen_file: Path, folder: Path, assets: Path, suite: str, *numbers: int) -> None:
    """Evaluate, and write the log as JSON."""
    log = EpisodeLog()
    with tempfile.TemporaryDirectory() as settings:
        prepare_libero(assets, Path(settings))
        pictures = count_pictures()
        watch(log)
        evaluate(folder, suite, *numbers)
    told = {
        "steps": sum(len(played.rewards) for played in log.played),
        "renders": pictures.drawn,
        "began_at": log.began_at,
        "first_step_at": log.first_step_at,
        "episodes": [played.summary() for played in log.played],
    }
    seen_file.write_text(json.dumps(told))


if __name__ == "__main__":
    seen_file, folder, assets, suite, *numbers = sys.argv[1:]
    main(Path(seen_file), Path(folder), Path(assets), suite, *map(int, numbers))
