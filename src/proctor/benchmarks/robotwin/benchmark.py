"""RoboTwin 2.0: 50 bimanual tasks (``proctor_worker/worlds/robotwin``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.foreign.benchmark import foreign_plugin


class RoboTwinSetting(Enum):
    """Upstream's settings of the scene."""

    CLEAN = "demo_clean"
    RANDOMIZED = "demo_randomized"
    """Random textures, light, clutter and table height."""


@dataclass
class RoboTwinConfig(BenchmarkConfig):
    """Flags of RoboTwin."""

    type: str = field(
        default="robotwin", metadata={"help": "benchmark: a built-in name or package.module:NAME"}
    )
    task: str = field(
        default="robotwin",
        metadata={"help": "tasks, comma-separated, or robotwin: all 50"},
    )
    setting: RoboTwinSetting = field(
        default=RoboTwinSetting.CLEAN,
        metadata={"help": "clean or randomised scenes"},
    )


PLUGIN = foreign_plugin(
    "robotwin",
    RoboTwinConfig,
    "RoboTwin 2.0: 50 bimanual tasks",
    groups=("robotwin",),
)
