"""Run popular environments of other packages: two random episodes each, one with a video.

    pip install 'gymnasium[box2d]' minigrid 'shimmy[dm-control]' gymnasium-robotics
    python scripts/try_gym_environments.py [ID ...]

No test needs these packages; the output is in docs/reference/benchmarks/gym.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import av

import proctor
from proctor.errors import ProctorError


@dataclass(frozen=True)
class Environment:
    """One environment and its success rule."""

    id: str
    success: str
    episode_length: int | None = None


ENVIRONMENTS = (
    Environment("CartPole-v1", "truncated"),
    Environment("CarRacing-v3", "return>=900", 60),
    Environment("minigrid:MiniGrid-Empty-5x5-v0", "terminated"),
    Environment("shimmy:dm_control/cartpole-swingup-v0", "none"),
    Environment("gymnasium_robotics:AdroitHandDoor-v1", "info.success", 40),
    Environment("gymnasium_robotics:PointMaze_UMaze-v3", "info.success", 40),
    Environment("gymnasium_robotics:FrankaKitchen-v1", "info.episode_task_completions>=4", 20),
    Environment("gymnasium_robotics:FetchReach-v4", "at_end"),
)


def main(wanted: list[str]) -> int:
    """Run the named environments, or all; return how many failed or have no video."""
    failed = 0
    for environment in ENVIRONMENTS:
        if wanted and environment.id not in wanted:
            continue
        began = time.perf_counter()
        try:
            said = _run(environment)
        except ProctorError as error:
            said, failed = f"FAILED: {error}", failed + 1
        print(f"{environment.id:<42} {environment.success:<33} {said}", flush=True)
        print(f"{'':<42} {time.perf_counter() - began:.0f} s", flush=True)
    return failed


def _run(environment: Environment) -> str:
    """Evaluate one environment; return a line with the result."""
    env = {"type": "gym", "id": environment.id, "success": environment.success}
    if environment.episode_length is not None:
        env["episode_length"] = str(environment.episode_length)
    with tempfile.TemporaryDirectory() as folder:
        video = {"episodes": 1, "which": "first"}
        run = proctor.evaluate(
            "random", env, n_episodes=2, video=video, output_dir=Path(folder, "run")
        )
        (video,) = Path(folder).rglob("*.mp4")
        with av.open(str(video)) as file:
            stream = file.streams.video[0]
            frames = [frame.to_ndarray(format="gray") for frame in file.decode(stream)]
            shown = f"{len(frames)} frames of {stream.width}x{stream.height}"
        if not all(frame.std() > 1 for frame in frames):
            raise ProctorError(
                f"a frame of its video has only one colour ({shown})", code="video.blank"
            )
    steps = "+".join(str(row.steps) for row in run.rows)
    return f"{run}; {steps} steps; film: {shown}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
