"""so101-nexus: eight tasks of an SO-101 arm (``proctor_worker/worlds/so101_nexus``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.foreign.plugin import foreign_plugin


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

    type: str = field(
        default="so101_nexus",
        metadata={"help": "benchmark: a built-in name or package.module:NAME"},
    )
    task: str = field(
        default="PickLift-v1",
        metadata={
            "help": "tasks, comma-separated: Touch-v1, LookAt-v1, Move-v1, PickLift-v1, "
            "PickReturn-v1, PickAndPlace-v1, PickAndPlace-v2, StackCube-v1; so101_nexus: all"
        },
    )
    obs_type: ObsType = field(
        default=ObsType.PIXELS_AGENT_POS,
        metadata={"help": "observations of the policy: images and joints, or the flat state"},
    )
    control_mode: ControlMode = field(
        default=ControlMode.PD_JOINT_POS,
        metadata={"help": "actions: joint positions in radians, or changes from -1 to 1"},
    )
    episode_length: int | None = field(
        default=None,
        metadata={
            "help": "maximum simulator steps per episode",
            "default_help": "so101-nexus's horizon of the task",
        },
    )
    observation_height: int = field(
        default=480, metadata={"help": "height of camera images in pixels"}
    )
    observation_width: int = field(
        default=640, metadata={"help": "width of camera images in pixels"}
    )


PLUGIN = foreign_plugin(
    "so101_nexus",
    So101NexusConfig,
    "so101-nexus: eight tasks of an SO-101 arm (Python 3.12)",
    groups=("so101_nexus",),
)
