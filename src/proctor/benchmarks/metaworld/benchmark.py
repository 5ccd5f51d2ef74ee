"""Meta-World (v3): 50 tabletop tasks of a Sawyer arm, as LeRobot evaluates them."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from proctor.benchmarks.base import SEED_RULE, BenchmarkPlugin, ListedTasks, RobotControl, Sim
from proctor.benchmarks.metaworld.sim import (
    MOVED_CAMERAS,
    ROTATED_CAMERAS,
    MetaworldSim,
    is_known_version,
)
from proctor.benchmarks.metaworld.smooth_experts import SMOOTH_EXPERTS
from proctor.benchmarks.metaworld.tasks import SPLITS, TASKS
from proctor.benchmarks.mujoco.drawing_process import render_variables
from proctor.benchmarks.mujoco.render_config import RenderedConfig
from proctor.benchmarks.selection import (
    cameras_by_key,
    check_cameras,
    image_key,
    require_positive,
    split_names,
    tasks_of_suite,
    unique_tasks,
)
from proctor.errors import MissingExtra, UsageError, did_you_mean
from proctor.features import (
    ENVIRONMENT_STATE,
    IMAGE,
    STATE,
    ActionSpec,
    Array,
    Expert,
    Feature,
    FeatureKind,
    Observation,
)
from proctor.fingerprint import NAME_LIST
from proctor.lerobot_flags import LerobotFlag
from proctor.settings import setting
from proctor.types import CLOSEST, Score, Task

FPS = 80
CAMERAS = ("corner", "corner2", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")

LEROBOT = {
    "fps": LerobotFlag((FPS,), f"Meta-World is controlled {FPS} times a second; see --video.fps"),
    "multitask_eval": LerobotFlag(None, "--env.task names the tasks to run, one or several"),
}
"""LeRobot's flags that Proctor does not have."""
_ROWS = {row.name: row for row in TASKS}
_GROUPS = {"mt50": tuple(_ROWS), **SPLITS}


class ExpertScripts(Enum):
    """Whose scripted experts solve the tasks."""

    METAWORLD = "metaworld"
    """Meta-World's own."""
    SMOOTH = "smooth"
    """Proctor's, whose actions change gradually; Meta-World's own for the other tasks."""


@dataclass
class MetaworldConfig(RenderedConfig):
    """Flags of Meta-World."""

    type: str = setting("metaworld", "benchmark: a built-in name or package.module:NAME")
    task: str = setting(
        "mt50", "tasks, splits (easy, medium, hard, very_hard) or mt50 (all), comma-separated"
    )
    camera_name: str = setting(
        "corner2", f"cameras, comma-separated: {', '.join(CAMERAS)}", NAME_LIST
    )
    camera_name_mapping: dict[str, str] | None = setting(
        None,
        "feature names of cameras, as {corner2: top} for observation.images.top (default: "
        "observation.image, or the cameras' names)",
    )
    episode_length: int = setting(500, "maximum simulator steps per episode")
    expert: ExpertScripts | None = setting(
        None,
        "scripted experts: Meta-World's own, or smooth ones to learn from, whose actions "
        "change gradually (default: metaworld)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expert is ExpertScripts.METAWORLD:
            self.expert = None  # the default: runs of both records are one protocol


class Metaworld(ListedTasks):
    """The Meta-World benchmark."""

    name = "metaworld"
    action = ActionSpec(4, -1.0, 1.0)
    distributions: tuple[str, ...] = ("metaworld", "mujoco", "gymnasium", "numpy")
    preload: tuple[str, ...] = ("mujoco", "metaworld", "metaworld.policies")
    expert_inputs: tuple[str, ...] = (ENVIRONMENT_STATE,)
    scores: tuple[Score, ...] = (Score(CLOSEST, "closest approach (m)"),)
    editable_scenes = True
    robot_control: RobotControl | None = RobotControl(
        action_noise=0.1,
        state_noise={STATE: 0.005, ENVIRONMENT_STATE: 0.005},
        hold=(0.0, 0.0, 0.0, 0.0),
        hand_step_m=0.01,
    )

    def __init__(self, config: MetaworldConfig) -> None:
        require_positive("episode_length", config.episode_length)
        self._config, self._render_settings = config, config.render_settings()
        self._camera_of = _camera_keys(config)
        self._tasks = unique_tasks(_selected_tasks(config))

    def features(self) -> dict[str, Feature]:
        """Return the cameras' images, the hand's state and Meta-World's observation.

        The state has 4 numbers and is absent for obs_type=pixels; the observation has 39.
        """
        shape = self._render_settings.shape
        offered = {key: Feature(FeatureKind.VISUAL, shape, "uint8") for key in self._camera_of}
        if self._config.state_is_offered:
            offered[STATE] = Feature(FeatureKind.STATE, (4,), "float32")
        offered[ENVIRONMENT_STATE] = Feature(FeatureKind.ENV, (39,), "float64")
        return offered

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        return {
            "horizon": self._config.episode_length,
            "seed_rule": SEED_RULE,
            "reset_rule": "a fresh simulator's state; positions drawn from the episode's seed",
            "termination": "success ends the episode; nothing else does before the horizon",
            "success": "Meta-World's info['success'] at any step",
            "action": "hand dx, dy, dz and gripper effort, each clipped to [-1, 1]",
            "goal_in_environment_state": True,
            "fps": FPS,
            "image_size": [self._config.observation_height, self._config.observation_width],
            "cameras": {key: _camera_protocol(name) for key, name in self._camera_of.items()},
        }

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check that Meta-World is installed and, if ``keys`` has images, that GL works."""
        if any(importlib.util.find_spec(module) is None for module in ("metaworld", "mujoco")):
            raise MissingExtra("Meta-World", "metaworld")
        is_rendered = any(key in self._camera_of for key in keys)
        return render_variables(self._render_settings, needed=is_rendered)

    def make_sim(self, task: Task) -> Sim:
        """Make the simulator of ``task``; the first image opens its GL context."""
        return MetaworldSim(task, self._camera_of, self._render_settings)

    def expert(self, task: Task) -> Expert:
        """Return the scripted policy for ``task``."""
        if self._config.expert is ExpertScripts.SMOOTH and task.name in SMOOTH_EXPERTS:
            return _SmoothScript(SMOOTH_EXPERTS[task.name])
        return _Script(_ROWS[task.name].policy)


class _SmoothScript:
    """A smooth expert."""

    def __init__(self, script: Callable[[Array], Array]) -> None:
        self._script = script

    def __call__(self, observation: Observation) -> Array:
        return self._script(observation[ENVIRONMENT_STATE])


class _Script:
    """A scripted policy of Meta-World, imported at the first call.

    The main process does not need it.
    """

    def __init__(self, policy: str) -> None:
        self._name = policy
        self._policy: Any = None

    def __call__(self, observation: Observation) -> Array:
        if self._policy is None:
            from metaworld import policies

            # The scripts request more than the environment allows, and warn once per process.
            warnings.filterwarnings("ignore", "Constant.s. may be too high", UserWarning)
            script = getattr(policies, self._name)
            if is_known_version():
                from proctor.benchmarks.metaworld.fast_env import fast_expert_class

                script = fast_expert_class(script)
            self._policy = script()
        return np.asarray(self._policy.get_action(observation[ENVIRONMENT_STATE]))


def _camera_keys(config: MetaworldConfig) -> dict[str, str]:
    """Return feature key -> camera, in the configured order."""
    cameras = split_names(config.camera_name, flag="camera_name")
    renamed = config.camera_name_mapping or {}
    check_cameras("metaworld", cameras, CAMERAS, renamed)
    default = {cameras[0]: IMAGE} if len(cameras) == 1 else {}
    keys = [image_key(renamed.get(camera) or default.get(camera, camera)) for camera in cameras]
    return cameras_by_key(keys, cameras)


def _camera_protocol(camera: str) -> dict[str, Any]:
    return {
        "camera": camera,
        "position": list(MOVED_CAMERAS[camera]) if camera in MOVED_CAMERAS else "as in the XML",
        "flip": "both axes" if camera in ROTATED_CAMERAS else "none",
    }


def _selected_tasks(config: MetaworldConfig) -> Iterator[Task]:
    """Yield the tasks of all groups in ``--env.task``."""
    for item in split_names(config.task, flag="task"):
        suite, names = _group(item)
        rows = [(name, _ROWS[name].instruction) for name in names]
        yield from tasks_of_suite(suite, rows, config.task_ids, config.episode_length, FPS)


def _group(item: str) -> tuple[str, tuple[str, ...]]:
    """Return a group's name and its tasks by id; a single task is its own group."""
    name = item.removeprefix("metaworld-")
    if name in _GROUPS:
        return name, _GROUPS[name]
    for full_name in (name, f"{name}-v3"):
        if full_name in _ROWS:
            return full_name, (full_name,)
    short_names = [known.removesuffix("-v3") for known in _ROWS]
    near = did_you_mean(name, [*_ROWS, *short_names, *_GROUPS])
    hint = near or f" (choose {', '.join(_GROUPS)} or a task such as reach-v3)"
    raise UsageError(f"metaworld has no task {item!r}{hint}", code="env.unknown-task")


PLUGIN = BenchmarkPlugin(
    config=MetaworldConfig,
    make=Metaworld,
    summary="Meta-World v3: 50 tabletop tasks of a Sawyer arm",
    lerobot_flags=LEROBOT,
    groups=tuple(_GROUPS),
)
