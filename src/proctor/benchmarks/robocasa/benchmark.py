"""RoboCasa 0.2: 24 atomic kitchen tasks (``proctor_worker/worlds/robocasa``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.isolated.plugin import isolated_plugin
from proctor.lerobot_flags import LerobotFlag
from proctor.settings import setting


class ObjectSplit(Enum):
    """RoboCasa's sets of object instances."""

    TRAIN = "A"
    EVALUATION = "B"


@dataclass
class RoboCasaConfig(BenchmarkConfig):
    """Flags of RoboCasa."""

    type: str = setting("robocasa", "benchmark: a built-in name or package.module:NAME")
    task: str = setting("atomic", "tasks, comma-separated, or atomic: all 24")
    arm_only: bool = setting(True, "actions of 7 numbers, the base stands still; false: 12 numbers")
    object_split: ObjectSplit = setting(
        ObjectSplit.EVALUATION, "object instances: A as in demonstrations, B held out"
    )
    episode_length: int | None = setting(
        None, "maximum simulator steps per episode (default: upstream's horizon of the task)"
    )
    observation_height: int = setting(128, "height of the images in pixels")
    observation_width: int = setting(128, "width of the images in pixels")


_CAMERAS = "robot0_agentview_left,robot0_eye_in_hand,robot0_agentview_right"
_REGISTRIES = ("['lightwheel']", '["lightwheel"]')
LEROBOT = {
    "fps": LerobotFlag((20,), "RoboCasa's robot is controlled 20 times a second"),
    "obs_type": LerobotFlag(
        ("pixels_agent_pos",), "policies choose their inputs among the images and the state"
    ),
    "camera_name": LerobotFlag((_CAMERAS,), "the three cameras of the published protocol"),
    "visualization_height": LerobotFlag(None, "videos show the cameras of the policy"),
    "visualization_width": LerobotFlag(None, "videos show the cameras of the policy"),
    "split": LerobotFlag((None,), "use --env.object_split=A or B"),
    "obj_registries": LerobotFlag(_REGISTRIES, "RoboCasa 0.2 uses its own objects"),
}
"""LeRobot's flags that Proctor does not have."""

PLUGIN = isolated_plugin(
    "robocasa",
    RoboCasaConfig,
    "RoboCasa 0.2: 24 atomic kitchen tasks",
    groups=("atomic",),
    lerobot_flags=LEROBOT,
)
