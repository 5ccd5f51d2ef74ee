"""LeRobot's processors of an online environment (--processor.*; ``env.processor`` in its files)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from proctor.errors import UsageError
from proctor.fingerprint import LOCAL_PATH
from proctor.settings import setting


@dataclass
class ObservationProcessing:
    """Additional observations of a robot."""

    help_group: ClassVar[str] = "Processors"

    add_joint_velocity_to_observation: bool = setting(
        False, "append the joints' velocities to the state"
    )
    add_current_to_observation: bool = setting(False, "append the motors' currents to the state")


@dataclass
class ImageProcessing:
    """Crop and size of images."""

    help_group: ClassVar[str] = "Processors"

    crop_params_dict: dict[str, list[int]] | None = setting(
        None,
        "crop of each image, as {observation.images.front: [top,left,height,width]} "
        "(default: no crop)",
    )
    resize_size: list[int] | None = setting(
        None, "resize images to [height,width] (default: as rendered)"
    )


@dataclass
class GripperProcessing:
    """The gripper as a discrete action."""

    help_group: ClassVar[str] = "Processors"

    use_gripper: bool = setting(True, "include the gripper in actions")
    gripper_penalty: float = setting(0.0, "added to the reward where the gripper is flipped")


@dataclass
class ResetProcessing:
    """Length and reset of an episode."""

    help_group: ClassVar[str] = "Processors"

    fixed_reset_joint_positions: list[float] | None = setting(
        None, "joint positions at the start of an episode (default: as the robot is)"
    )
    reset_time_s: float = setting(5.0, "seconds to reset the scene")
    control_time_s: float | None = setting(
        None,
        "longest episode in seconds (default: 20 with a robot, else the benchmark's)",
        above=0,
        most=10**6,
    )
    terminate_on_success: bool = setting(True, "end an episode with its first success")


@dataclass
class KinematicsProcessing:
    """End-effector control of a robot."""

    help_group: ClassVar[str] = "Processors"

    urdf_path: Path | None = setting(
        None, "URDF file of the robot (default: joint control)", LOCAL_PATH
    )
    target_frame_name: str | None = setting(None, "link that is controlled (default: the gripper)")
    end_effector_bounds: dict[str, list[float]] | None = setting(
        None, "bounds of the hand in metres, as {min: [x,y,z], max: [x,y,z]} (default: no bounds)"
    )
    end_effector_step_sizes: dict[str, float] | None = setting(
        None, "metres of a full action, as {x: 0.025} (default: 1)"
    )


@dataclass
class RewardClassifierSettings:
    """A reward classifier as the environment's reward."""

    help_group: ClassVar[str] = "Processors"

    pretrained_path: str | None = setting(
        None, "checkpoint of the reward classifier (default: none)", LOCAL_PATH
    )
    success_threshold: float = setting(0.5, "probability above which a frame is a success")
    success_reward: float = setting(1.0, "reward of a success")


@dataclass
class EnvProcessorSettings:
    """What is done to observations, actions and rewards (--processor.*), as LeRobot names it."""

    help_group: ClassVar[str] = "Processors"

    observation: ObservationProcessing = field(default_factory=ObservationProcessing)
    image_preprocessing: ImageProcessing = field(default_factory=ImageProcessing)
    gripper: GripperProcessing = field(default_factory=GripperProcessing)
    reset: ResetProcessing = field(default_factory=ResetProcessing)
    inverse_kinematics: KinematicsProcessing = field(default_factory=KinematicsProcessing)
    reward_classifier: RewardClassifierSettings = field(default_factory=RewardClassifierSettings)
    max_gripper_pos: float | None = setting(
        None,
        "position of the open gripper, which enables the gripper penalty of a robot "
        "(default: no penalty)",
    )

    def validate(self) -> None:
        """Refuse sizes and crops of a wrong form."""
        size = self.image_preprocessing.resize_size
        if size is not None and not _is_box(size, 2, least=8):
            raise UsageError(
                f"--processor.image_preprocessing.resize_size is {size} (give [height,width], 8 to "
                "4096 pixels each)",
                code="flag.out-of-range",
            )
        for key, crop in (self.image_preprocessing.crop_params_dict or {}).items():
            if not _is_box(crop, 4, least=0):
                raise UsageError(
                    f"--processor.image_preprocessing.crop_params_dict: {key} is {crop} (give "
                    "[top,left,height,width])",
                    code="flag.out-of-range",
                )


def _is_box(values: list[Any], count: int, *, least: int) -> bool:
    return len(values) == count and all(least <= value <= 4096 for value in values)
