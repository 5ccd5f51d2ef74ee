"""gym_hil: a Franka Panda, moved by its hand, picks a cube or arranges boxes."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from proctor.benchmarks.base import (
    SEED_RULE,
    BenchmarkConfig,
    BenchmarkPlugin,
    ListedTasks,
    RobotControl,
    Sim,
)
from proctor.benchmarks.gym_hil.tasks import (
    ACTION_NAMES,
    CAMERAS,
    FPS,
    PICK,
    STATE_NAMES,
    SUITE,
    TASKS,
)
from proctor.benchmarks.mujoco.render_config import SHADOW_MAP, RenderSettings, require_shadow_map
from proctor.benchmarks.selection import (
    LARGEST_SIDE,
    TaskGroups,
    require_positive,
)
from proctor.errors import MissingExtra, UsageError
from proctor.features import (
    ENVIRONMENT_STATE,
    STATE,
    ActionSpec,
    Expert,
    Feature,
    FeatureKind,
)
from proctor.lerobot_flags import LerobotFlag
from proctor.settings import setting
from proctor.system.graphics.gl import gl_variables
from proctor.types import CLOSEST, Score, Task

LEROBOT = {"fps": LerobotFlag((FPS,), f"gym_hil is controlled {FPS} times a second")}
"""LeRobot's flags that Proctor does not have."""
_ALONE = " && pip install --no-deps gym-hil==0.1.14"


class ObsType(Enum):
    """Observations that policies get."""

    PIXELS_AGENT_POS = "pixels_agent_pos"
    """Camera images and the arm's state."""
    STATE = "state"
    """The arm's state and the block's position."""


_GROUPS = TaskGroups(
    "gym_hil", {SUITE: TASKS, **{row.name: (row,) for row in TASKS}}, prefix="gym_hil/", fps=FPS
)


@dataclass
class GymHilConfig(BenchmarkConfig):
    """Flags of gym_hil."""

    help_groups: ClassVar[Mapping[str, str]] = {"Observations": "shadow_map"}

    type: str = setting("gym_hil", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(
        PICK.name, f"tasks, comma-separated: {', '.join(row.name for row in TASKS)}; gym_hil: all"
    )
    obs_type: ObsType = setting(
        ObsType.PIXELS_AGENT_POS,
        "observations of the policy: images and the arm's state, or the arm's state and the "
        "block's position",
    )
    observation_height: int = setting(128, "height of camera images in pixels")
    observation_width: int = setting(128, "width of camera images in pixels")
    shadow_map: int | None = setting(None, SHADOW_MAP)
    episode_length: int = setting(100, "maximum simulator steps per episode")
    random_block_position: bool = setting(
        True, "place the cube at random; gym_hil's default is one fixed place"
    )
    gripper_penalty: float = setting(
        0.0,
        "penalty of a command that flips the gripper, 0 or negative; online learning adds it "
        "to the reward of the gripper critic",
    )


_FIXED = (
    "--env.random_block_position=false: the cube has one place, so recordings, online learning and "
    "evaluations all start there"
)


class GymHil(ListedTasks):
    """The benchmark gym_hil."""

    name = "gym_hil"
    # gym_hil executes actions beyond the range unchanged; only the hand's position is limited.
    action = ActionSpec(
        4, (-1.0, -1.0, -1.0, 0.0), (1.0, 1.0, 1.0, 2.0), clipped=False, names=ACTION_NAMES
    )
    distributions: tuple[str, ...] = ("gym-hil", "mujoco", "gymnasium", "numpy")
    preload: tuple[str, ...] = ("proctor.benchmarks.gym_hil.sim",)
    expert_inputs: tuple[str, ...] = (STATE, ENVIRONMENT_STATE)
    scores: tuple[Score, ...] = (Score(CLOSEST, "closest approach (m)"),)
    editable_scenes = True
    robot_control: RobotControl | None = RobotControl(
        action_noise=(0.1, 0.1, 0.1, 0.0),  # a gripper command is one of three
        state_noise={STATE: 0.005, ENVIRONMENT_STATE: 0.005},
        hold=(0.0, 0.0, 0.0, 1.0),
        hand_step_m=0.025,
    )

    def __init__(self, config: GymHilConfig) -> None:
        for name in ("observation_height", "observation_width"):
            require_positive(name, getattr(config, name), LARGEST_SIDE)
        require_shadow_map(config.shadow_map)
        require_positive("episode_length", config.episode_length)
        if not -1e6 <= config.gripper_penalty <= 0:
            raise UsageError(
                f"--env.gripper_penalty must be 0 or negative, not {config.gripper_penalty:g}",
                code="flag.out-of-range",
            )
        self.notes: tuple[str, ...] = () if config.random_block_position else (_FIXED,)
        self._config = config
        self._render_settings = RenderSettings(
            config.observation_height, config.observation_width, config.shadow_map
        )
        self._tasks = _GROUPS.select(config.task, config.task_ids, config.episode_length)

    def features(self) -> dict[str, Feature]:
        """Return both cameras' images, the arm's state, and the block's position."""
        image = Feature(FeatureKind.VISUAL, self._render_settings.shape, "uint8")
        shown = CAMERAS if self._config.obs_type is ObsType.PIXELS_AGENT_POS else ()
        return {
            **dict.fromkeys(shown, image),
            STATE: Feature(FeatureKind.STATE, (len(STATE_NAMES),), "float32", STATE_NAMES),
            ENVIRONMENT_STATE: Feature(
                FeatureKind.ENV, (3,), "float32", ("block.x", "block.y", "block.z")
            ),
        }

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        config = self._config
        place = "x 0.3 to 0.5, y -0.15 to 0.15" if config.random_block_position else "(0.5, 0)"
        return {
            "horizon": config.episode_length,
            "seed_rule": SEED_RULE,
            "reset_rule": f"the arm in its home pose; the cube at {place}; boxes in random order; "
            "numpy's global generator seeded with the episode's seed",
            "termination": "success, or the block has left the table's middle",
            "success": "the cube is lifted by 0.1 m; every box is within 0.03 m of its target",
            "reward": "1 at success, otherwise 0",
            "action": "hand's motion in units of 0.025 m, gripper 0 (open) 1 (stay) 2 (close)",
            "fps": FPS,
            "image_size": [config.observation_height, config.observation_width],
            "cameras": CAMERAS,
        }

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check that gym_hil is installed and, if ``keys`` has images, that GL works."""
        modules = ("gym_hil", "gymnasium", "mujoco")
        if any(importlib.util.find_spec(module) is None for module in modules):
            raise MissingExtra("gym-hil", "hil", then=_ALONE)
        return gl_variables(needed=any(key in CAMERAS for key in keys))

    def make_sim(self, task: Task) -> Sim:
        """Make the simulator of ``task``; the first image opens its GL context."""
        from proctor.benchmarks.gym_hil.sim import GymHilSim, SimSettings

        config = self._config
        settings = SimSettings(
            self._render_settings, config.random_block_position, config.gripper_penalty
        )
        return GymHilSim(task.name, settings)

    def expert(self, task: Task) -> Expert:
        """Return the scripted expert of the pick."""
        from proctor.benchmarks.gym_hil.expert import PickExpert

        if task.name != PICK.name:
            raise UsageError(
                f"{task.name} has no scripted expert; choose {PICK.name}", code="env.no-expert"
            )
        return PickExpert()


PLUGIN = BenchmarkPlugin(
    config=GymHilConfig,
    make=GymHil,
    summary="gym_hil: a Franka Panda picks a cube (LeRobot's HIL-SERL)",
    lerobot_flags=LEROBOT,
    groups=(SUITE,),
)
