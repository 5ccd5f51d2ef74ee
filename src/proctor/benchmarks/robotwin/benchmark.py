"""RoboTwin 2.0: 50 bimanual tasks (``proctor_worker/worlds/robotwin``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.isolated.plugin import isolated_plugin
from proctor.lerobot_flags import LerobotFlag
from proctor.settings import setting


class RoboTwinSetting(Enum):
    """Upstream's settings of the scene."""

    CLEAN = "demo_clean"
    RANDOMIZED = "demo_randomized"
    """Random textures, light, clutter and table height."""


@dataclass
class RoboTwinConfig(BenchmarkConfig):
    """Flags of RoboTwin."""

    type: str = setting("robotwin", "benchmark: a built-in name or package.module:NAME")
    task: str = setting("robotwin", "tasks, comma-separated, or robotwin: all 50")
    setting: RoboTwinSetting = setting(RoboTwinSetting.CLEAN, "clean or randomised scenes")


LEROBOT = {
    "fps": LerobotFlag((25,), "RoboTwin's robot is controlled 25 times a second"),
    "episode_length": LerobotFlag((1200,), "every task has upstream's own horizon"),
    "obs_type": LerobotFlag(
        ("pixels_agent_pos",), "policies choose their inputs among the images and the state"
    ),
    "camera_names": LerobotFlag(
        ("head_camera,left_camera,right_camera",), "upstream's setting names the cameras"
    ),
    "observation_height": LerobotFlag((240,), "upstream's cameras have 240 x 320 pixels"),
    "observation_width": LerobotFlag((320,), "upstream's cameras have 240 x 320 pixels"),
    "action_mode": LerobotFlag(("joint",), "actions are joint positions"),
}
"""LeRobot's flags that Proctor does not have."""

PLUGIN = isolated_plugin(
    "robotwin",
    RoboTwinConfig,
    "RoboTwin 2.0: 50 bimanual tasks",
    groups=("robotwin",),
    lerobot_flags=LEROBOT,
)
