"""RLBench: ten tasks with planned motions (``proctor_worker/worlds/rlbench``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.foreign.plugin import foreign_plugin


@dataclass
class RLBenchConfig(BenchmarkConfig):
    """Flags of RLBench."""

    type: str = field(
        default="rlbench", metadata={"help": "benchmark: a built-in name or package.module:NAME"}
    )
    task: str = field(
        default="rlbench_10",
        metadata={"help": "tasks, comma-separated, or rlbench_10: all ten"},
    )
    episode_length: int | None = field(
        default=None,
        metadata={
            "help": "maximum simulator steps per episode",
            "default_help": "upstream's horizon of the task",
        },
    )
    observation_height: int = field(
        default=128, metadata={"help": "height of the images in pixels"}
    )
    observation_width: int = field(default=128, metadata={"help": "width of the images in pixels"})


PLUGIN = foreign_plugin(
    "rlbench",
    RLBenchConfig,
    "RLBench: ten tasks with planned motions of the hand",
    groups=("rlbench_10",),
)
