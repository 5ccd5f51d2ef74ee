"""Names of gym_hil: tasks, cameras, and the dimensions of states and actions."""

from __future__ import annotations

from typing import NamedTuple

from proctor.features import IMAGES

FPS = 10
SUITE = "gym_hil"
CAMERAS = {IMAGES + "front": "front", IMAGES + "wrist": "handcam_rgb"}
"""Image key -> camera of the model."""
STATE_NAMES = (
    *(f"joint{number}.pos" for number in range(1, 8)),
    *(f"joint{number}.vel" for number in range(1, 8)),
    "gripper",
    *("hand.x", "hand.y", "hand.z"),
)
ACTION_NAMES = ("delta_x", "delta_y", "delta_z", "gripper.close")
"""A larger last number closes the gripper, against LeRobot's usual direction."""


class HilTask(NamedTuple):
    """A task: gym_hil's id without its name space, and an instruction."""

    name: str
    instruction: str


PICK = HilTask("PandaPickCube-v0", "Pick up the cube.")
ARRANGE = HilTask("PandaArrangeBoxes-v0", "Put every box on the target of its colour.")
TASKS = (PICK, ARRANGE)
