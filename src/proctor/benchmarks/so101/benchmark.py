"""SO-101 in simulation: the arm picks a cube up and drops it into a bin."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from proctor.benchmarks.base import (
    SEED_RULE,
    BenchmarkConfig,
    BenchmarkPlugin,
    ListedTasks,
    RobotControl,
    Sim,
)
from proctor.benchmarks.selection import LARGEST_SIDE, ids_in_group, require_positive, split_names
from proctor.benchmarks.so101 import FPS
from proctor.benchmarks.so101.kinematics import CHANNELS, JOINT_NAMES, unit_range
from proctor.benchmarks.so101.scene import CAMERAS
from proctor.benchmarks.so101.world import SCENE_STATE_NAMES
from proctor.errors import MissingExtra, UsageError
from proctor.features import (
    ENVIRONMENT_STATE,
    IMAGES,
    STATE,
    ActionSpec,
    Expert,
    Feature,
    FeatureKind,
)
from proctor.lerobot_flags import LerobotFlag
from proctor.settings import setting
from proctor.system.graphics.gl import gl_variables
from proctor.types import CLOSEST, SUBGOALS, Score, Task

LEROBOT = {"fps": LerobotFlag((FPS,), f"so101 is controlled {FPS} times a second")}
"""LeRobot's flags that Proctor does not have."""
_CAMERA_KEYS = tuple(IMAGES + camera for camera in CAMERAS)
_SUITE, _TASK = "so101", "PickCube-v0"
_INSTRUCTION = "Pick up the cube and put it into the bin."
_RANGES = [unit_range(joint) for joint in JOINT_NAMES]


class ObsType(Enum):
    """Observations that policies get."""

    PIXELS_AGENT_POS = "pixels_agent_pos"
    """Camera images and joints."""
    STATE = "state"
    """Joints, and the poses of cube and bin."""


@dataclass
class So101Config(BenchmarkConfig):
    """Flags of the SO-101."""

    type: str = setting("so101", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(_TASK, f"task; only {_TASK}")
    obs_type: ObsType = setting(
        ObsType.PIXELS_AGENT_POS,
        "observations of the policy: images and joints, or joints and the poses of cube and bin",
    )
    observation_height: int = setting(96, "height of camera images in pixels")
    observation_width: int = setting(128, "width of camera images in pixels")
    episode_length: int = setting(300, "maximum simulator steps per episode")


class So101(ListedTasks):
    """The SO-101 benchmark."""

    name = "so101"
    action = ActionSpec(
        len(CHANNELS),
        tuple(low for low, _ in _RANGES),
        tuple(high for _, high in _RANGES),
        names=CHANNELS,
    )
    distributions: tuple[str, ...] = ("mujoco", "numpy")
    preload: tuple[str, ...] = ("mujoco", "proctor.benchmarks.so101.sim")
    expert_inputs: tuple[str, ...] = (STATE, ENVIRONMENT_STATE)
    scores: tuple[Score, ...] = (
        Score(SUBGOALS, "subgoals"),
        Score(CLOSEST, "closest approach (m)"),
    )
    editable_scenes = True
    robot_control: RobotControl | None = RobotControl(
        action_noise=0.5,  # degrees; of the gripper, percent
        state_noise={STATE: 0.5, ENVIRONMENT_STATE: (0.005, 0.005, 0.005, 2.0, 0.005, 0.005)},
        joints=tuple(range(len(CHANNELS) - 1)),
    )

    def __init__(self, config: So101Config) -> None:
        require_positive("observation_height", config.observation_height, LARGEST_SIDE)
        require_positive("observation_width", config.observation_width, LARGEST_SIDE)
        require_positive("episode_length", config.episode_length)
        for name in split_names(config.task, flag="task"):
            if name not in (_SUITE, _TASK):
                raise UsageError(
                    f"so101 has no task {name!r} (choose {_TASK})", code="env.unknown-task"
                )
        ids_in_group(_SUITE, 1, config.task_ids)
        self._config = config
        self._tasks = [Task(_SUITE, 0, _TASK, _INSTRUCTION, config.episode_length, FPS)]

    def features(self) -> dict[str, Feature]:
        """Return the images of both cameras, the joints, and the poses of cube and bin."""
        config = self._config
        image = Feature(
            FeatureKind.VISUAL, (config.observation_height, config.observation_width, 3), "uint8"
        )
        shown = _CAMERA_KEYS if config.obs_type is ObsType.PIXELS_AGENT_POS else ()
        return {
            **dict.fromkeys(shown, image),
            STATE: Feature(FeatureKind.STATE, (len(CHANNELS),), "float32", CHANNELS),
            ENVIRONMENT_STATE: Feature(
                FeatureKind.ENV, (len(SCENE_STATE_NAMES),), "float32", SCENE_STATE_NAMES
            ),
        }

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        return {
            "horizon": self._config.episode_length,
            "seed_rule": SEED_RULE,
            "reset_rule": "the arm in its home pose; places of cube and bin from the seed",
            "termination": "success ends the episode; nothing else does before the horizon",
            "success": "the cube lies in the bin and the gripper is open",
            "reward": "1 at success, otherwise 0",
            "action": "joint targets in degrees, gripper 0 (closed) to 100 (open), clipped",
            "fps": FPS,
            "image_size": [self._config.observation_height, self._config.observation_width],
        }

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check that MuJoCo is installed and, if ``keys`` has images, that GL works."""
        if importlib.util.find_spec("mujoco") is None:
            raise MissingExtra("MuJoCo", "so101")
        return gl_variables(needed=any(key in _CAMERA_KEYS for key in keys))

    def make_sim(self, task: Task) -> Sim:
        """Make the simulator; the first image opens its GL context."""
        from proctor.benchmarks.so101.sim import So101Sim

        return So101Sim((self._config.observation_height, self._config.observation_width))

    def expert(self, task: Task) -> Expert:
        """Return the scripted expert."""
        from proctor.benchmarks.so101.expert import So101Expert

        return So101Expert()


PLUGIN = BenchmarkPlugin(
    config=So101Config,
    make=So101,
    summary="SO-101 in simulation: pick a cube into a bin",
    lerobot_flags=LEROBOT,
)
