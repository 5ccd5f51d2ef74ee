"""ALOHA in simulation: two arms insert a peg or hand over a cube, as LeRobot evaluates it."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from proctor.benchmarks.base import SEED_RULE, BenchmarkPlugin, ListedTasks, RobotControl, Sim
from proctor.benchmarks.mujoco.drawing_process import render_variables
from proctor.benchmarks.mujoco.render_config import RenderedConfig
from proctor.benchmarks.selection import TaskGroups, require_positive
from proctor.errors import MissingExtra, UsageError
from proctor.features import IMAGES, STATE, ActionSpec, Expert, Feature, FeatureKind
from proctor.lerobot_flags import LerobotFlag
from proctor.settings import setting
from proctor.types import MAX_REWARD, Score, Task

TOP = IMAGES + "top"
FPS = 50
LEROBOT = {"fps": LerobotFlag((FPS,), f"ALOHA is controlled {FPS} times a second; see --video.fps")}
"""LeRobot's flags that Proctor does not have."""


class AlohaTask(NamedTuple):
    """A task: gym-aloha's id, and the instruction of LeRobot's datasets."""

    name: str
    instruction: str


TASKS = (
    AlohaTask("AlohaInsertion-v0", "Insert the peg into the socket."),
    AlohaTask(
        "AlohaTransferCube-v0",
        "Pick up the cube with the right arm and transfer it to the left arm.",
    ),
)


_GROUPS = TaskGroups(
    "aloha", {"aloha": TASKS, **{row.name: (row,) for row in TASKS}}, prefix="gym_aloha/", fps=FPS
)


@dataclass
class AlohaConfig(RenderedConfig):
    """Flags of ALOHA."""

    type: str = setting("aloha", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(
        TASKS[0].name,
        f"tasks, comma-separated: {', '.join(row.name for row in TASKS)}; aloha: all",
    )
    observation_width: int = setting(640, "width of camera images in pixels")
    episode_length: int = setting(400, "maximum simulator steps per episode")


class Aloha(ListedTasks):
    """The ALOHA benchmark."""

    name = "aloha"
    # Joint targets in rad exceed the [-1, 1] that gym-aloha declares, so there is no range here.
    action = ActionSpec(14)
    distributions: tuple[str, ...] = ("gym-aloha", "dm_control", "mujoco", "gymnasium", "numpy")
    preload: tuple[str, ...] = ("proctor.benchmarks.aloha.sim",)
    expert_inputs: tuple[str, ...] = ()
    scores: tuple[Score, ...] = (Score(MAX_REWARD, "max reward"),)
    editable_scenes = True
    robot_control: RobotControl | None = RobotControl(
        action_noise=0.01,  # rad; of grippers, from 0 to 1
        state_noise={STATE: 0.01},
        joints=(*range(6), *range(7, 13)),
        degree=math.pi / 180,
    )

    def __init__(self, config: AlohaConfig) -> None:
        require_positive("episode_length", config.episode_length)
        self._config, self._render_settings = config, config.render_settings()
        self._tasks = _GROUPS.select(config.task, config.task_ids, config.episode_length)

    def features(self) -> dict[str, Feature]:
        """Return the top camera's image and the arms' joints."""
        offered = {TOP: Feature(FeatureKind.VISUAL, self._render_settings.shape, "uint8")}
        if self._config.state_is_offered:
            offered[STATE] = Feature(FeatureKind.STATE, (14,), "float32")
        return offered

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        return {
            "horizon": self._config.episode_length,
            "seed_rule": SEED_RULE,
            "reset_rule": "MuJoCo's reset; object places from RandomState(the episode's seed)",
            "termination": "success ends the episode; nothing else does before the horizon",
            "success": "reward 4, the last stage",
            "reward": "the stage reached, 0 to 4, at every step",
            "action": "14 joint targets in rad, grippers 0 (closed) to 1 (open), not clipped",
            "fps": FPS,
            "image_size": [self._config.observation_height, self._config.observation_width],
            "cameras": {TOP: "top"},
        }

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check that gym-aloha is installed and, if ``keys`` has the image, that GL works."""
        modules = ("gym_aloha", "dm_control", "mujoco")
        if any(importlib.util.find_spec(module) is None for module in modules):
            raise MissingExtra("gym-aloha", "aloha")
        return render_variables(self._render_settings, needed=TOP in keys)

    def make_sim(self, task: Task) -> Sim:
        """Make the simulator of ``task``; the first image opens its GL context."""
        from proctor.benchmarks.aloha.sim import AlohaSim

        return AlohaSim(task.name, self._render_settings)

    def expert(self, task: Task) -> Expert:
        """Refuse: ALOHA has no expert."""
        raise UsageError(
            "aloha has no scripted policy; choose another --policy.type", code="env.no-expert"
        )


PLUGIN = BenchmarkPlugin(
    config=AlohaConfig,
    make=Aloha,
    summary="ALOHA in simulation: two arms, peg and cube",
    lerobot_flags=LEROBOT,
    groups=("aloha",),
)
