"""ManiSkill3 and SimplerEnv's WidowX tasks (``proctor_worker/worlds/maniskill``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.isolated.plugin import isolated_plugin
from proctor.settings import setting


class ObservationType(Enum):
    """What can be observed."""

    PIXELS = "pixels"
    """Images of the robot's cameras and states; needs a Vulkan driver."""
    STATE = "state"
    """States only: nothing renders."""


@dataclass
class ManiSkillConfig(BenchmarkConfig):
    """Flags of ManiSkill3."""

    type: str = setting("maniskill", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(
        "PickCube-v1", "tasks, comma-separated, or a group of one robot: tabletop, widowx"
    )
    obs_type: ObservationType = setting(
        ObservationType.PIXELS, "pixels: images and states; state: nothing renders"
    )
    control_mode: str | None = setting(
        None, "ManiSkill's control mode (default: the robot's first)"
    )
    episode_length: int | None = setting(
        None, "maximum simulator steps per episode (default: upstream's horizon of the task)"
    )


PLUGIN = isolated_plugin(
    "maniskill",
    ManiSkillConfig,
    "ManiSkill3 (Panda on a table) and SimplerEnv's WidowX tasks",
    groups=(
        "tabletop",
        "widowx",
    ),
)
