"""so101-nexus: eight tasks of an SO-101 arm (``proctor_worker/worlds/so101_nexus``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.isolated.plugin import isolated_plugin
from proctor.settings import setting


class ObsType(Enum):
    """Observations that policies get."""

    PIXELS_AGENT_POS = "pixels_agent_pos"
    """Wrist and overhead images, and the joint positions."""
    STATE = "state"
    """so101-nexus's flat state, with the pose of the object."""


class ControlMode(Enum):
    """Meaning of the six numbers of an action."""

    PD_JOINT_POS = "pd_joint_pos"
    """Joint positions in radians."""
    PD_JOINT_DELTA_POS = "pd_joint_delta_pos"
    """Changes of the measured positions, from -1 to 1."""
    PD_JOINT_TARGET_DELTA_POS = "pd_joint_target_delta_pos"
    """Changes of the last targets, from -1 to 1."""


@dataclass
class So101NexusConfig(BenchmarkConfig):
    """Flags of so101-nexus."""

    type: str = setting("so101_nexus", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(
        "PickLift-v1",
        "tasks, comma-separated: Touch-v1, LookAt-v1, Move-v1, PickLift-v1, PickReturn-v1, "
        "PickAndPlace-v1, PickAndPlace-v2, StackCube-v1; so101_nexus: all",
    )
    obs_type: ObsType = setting(
        ObsType.PIXELS_AGENT_POS, "observations of the policy: images and joints, or the flat state"
    )
    control_mode: ControlMode = setting(
        ControlMode.PD_JOINT_POS, "actions: joint positions in radians, or changes from -1 to 1"
    )
    episode_length: int | None = setting(
        None, "maximum simulator steps per episode (default: so101-nexus's horizon of the task)"
    )
    observation_height: int = setting(480, "height of camera images in pixels")
    observation_width: int = setting(640, "width of camera images in pixels")


PLUGIN = isolated_plugin(
    "so101_nexus",
    So101NexusConfig,
    "so101-nexus: eight tasks of an SO-101 arm (Python 3.12)",
    groups=("so101_nexus",),
)
