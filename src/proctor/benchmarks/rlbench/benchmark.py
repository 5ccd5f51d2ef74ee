"""RLBench: ten tasks with planned motions (``proctor_worker/worlds/rlbench``)."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.isolated.plugin import isolated_plugin
from proctor.settings import setting


@dataclass
class RLBenchConfig(BenchmarkConfig):
    """Flags of RLBench."""

    type: str = setting("rlbench", "benchmark: a built-in name or package.module:NAME")
    task: str = setting("rlbench_10", "tasks, comma-separated, or rlbench_10: all ten")
    episode_length: int | None = setting(
        None, "maximum simulator steps per episode (default: upstream's horizon of the task)"
    )
    observation_height: int = setting(128, "height of the images in pixels")
    observation_width: int = setting(128, "width of the images in pixels")


PLUGIN = isolated_plugin(
    "rlbench",
    RLBenchConfig,
    "RLBench: ten tasks with planned motions of the hand",
    groups=("rlbench_10",),
)
