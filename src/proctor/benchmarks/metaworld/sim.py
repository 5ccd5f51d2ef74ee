"""Meta-World simulator with complete resets, rendered only for observations."""

from __future__ import annotations

import importlib.metadata
import pickle
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from proctor.benchmarks.base import ROBOT, PendingImage, xyz
from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.mujoco.log import log_mujoco_warnings
from proctor.benchmarks.mujoco.model_cache import load_model
from proctor.benchmarks.mujoco.render_config import RenderSettings
from proctor.benchmarks.mujoco.renderers import ImageRenderer, make_renderer
from proctor.benchmarks.mujoco.rendering import SceneEdit
from proctor.benchmarks.mujoco.world import world_state
from proctor.features import ENVIRONMENT_STATE, STATE, Array, Observation
from proctor.types import CLOSEST, EpisodeSpec, StepResult, Task
from proctor_worker.worlds.mujoco_tools import JointReader

# LeRobot moves this camera closer; every public Meta-World checkpoint was trained on that view.
MOVED_CAMERAS = {"corner2": (0.75, 0.075, 0.7)}
# These are upside down in the XML, so their images are rotated by 180 degrees. (LeRobot rotates
# corner2 only, and returns the others upside down.)
ROTATED_CAMERAS = frozenset({"corner", "corner2", "corner3", "corner4"})
_FRAME = 18
"""Size of a frame of Meta-World's observation: the hand, and two objects' poses."""


@cache
def is_known_version() -> bool:
    """Return whether Meta-World is the version that ``fast_env`` replaces methods of."""
    return importlib.metadata.version("metaworld") == "3.1.1"


class MetaworldSim:
    """A Meta-World environment whose resets restore the state of a new environment."""

    def __init__(
        self, task: Task, camera_of: dict[str, str], render_settings: RenderSettings
    ) -> None:
        self._env = _make_env(task)
        self._render_settings = render_settings
        self._camera_of = camera_of
        self._initial_state = _InitialState(self._env)
        self._joints = JointReader(self._env.model)
        self._renderer: ImageRenderer | None = None
        self.scene_edit: SceneEdit | None = None
        # Stored, because another observation call would change the environment's frame stack.
        self._numbers = np.zeros(39)

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset to the state of a new environment that is seeded with the spec's seed."""
        self._initial_state.restore()
        self._env.seed(spec.seed)
        self._numbers, _ = self._env.reset()

    def step(self, action: Array) -> StepResult:
        """Advance the world by one action (Meta-World clips it)."""
        # float32 as in the action space: float64 would change the last bits of the hand's motion.
        self._numbers, reward, _, _, info = self._env.step(np.asarray(action, dtype=np.float32))
        with proctor_code():
            success = bool(info["success"])
            scores = {CLOSEST: float(info["obj_to_target"])}
            return StepResult(float(reward), success=success, terminated=success, scores=scores)

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``; image keys render."""
        with proctor_code():
            return {key: self._observe(key) for key in keys}

    def request_images(self, keys: Sequence[str]) -> dict[str, PendingImage] | None:
        """Request images of the current state; None if GL renders them at once."""
        if not self._render_settings.is_drawn:
            return None
        return {key: self._request(self._camera_of[key]) for key in keys}

    def physics(self) -> Array:
        """Return joint positions and velocities, and the poses of bodies and sites."""
        return world_state(self._env.data)

    def coordinates(self) -> dict[str, float]:
        """Return the positions of object, goal and hand, in metres."""
        goal = self._env._target_pos
        return {
            **xyz("object", self._numbers[4:7]),
            **({} if goal is None else xyz("goal", goal)),
            **xyz(f"{ROBOT} hand", self._numbers[:3]),
        }

    def start_state(self) -> dict[str, float]:
        """Return what is observed without its history, the goal, and all joints.

        The goal is not observed, and a goal or a fixture may have no joint.
        """
        observed = {f"observed {n}": at for n, at in enumerate(self._numbers[:_FRAME].tolist())}
        goal = self._env._target_pos
        placed = {} if goal is None else xyz("goal", goal)
        return {**observed, **placed, **self._joints.read(self._env.data.qpos)}

    def close(self) -> None:
        """Free the renderer and the environment."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._env.close()

    def _observe(self, key: str) -> Array:
        if key in self._camera_of:
            return self._render(self._camera_of[key])
        if key == STATE:
            return self._numbers[:4].astype(np.float32)
        if key == ENVIRONMENT_STATE:
            return self._numbers.copy()
        raise KeyError(key)

    def _render(self, camera: str) -> Array:
        rotated = camera in ROTATED_CAMERAS
        return self._open_renderer().render(
            self._env.data, camera, self.scene_edit, rotated=rotated
        )

    def _request(self, camera: str) -> PendingImage:
        rotated = camera in ROTATED_CAMERAS
        return self._open_renderer().request(
            self._env.data, camera, self.scene_edit, rotated=rotated
        )

    def _open_renderer(self) -> ImageRenderer:
        if self._renderer is None:
            self._renderer = make_renderer(self._env.model, self._render_settings)
        return self._renderer


class _InitialState:
    """State of a new environment before its first reset, restored before every reset.

    Meta-World's own ``reset`` depends on the last episode: it reads object heights from the old
    physics state, moves bodies and sites of the model, and keeps per-task attributes.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._fields = [(values, values.copy()) for values in _changeable_fields(env.model)]
        self._attributes = {name: _own_copy(value) for name, value in vars(env).items()}

    def restore(self) -> None:
        """Restore the environment's model, physics and Python attributes."""
        import mujoco

        env = self._env
        for values, initial in self._fields:
            np.copyto(values, initial)
        # In place, as the constructor does: some attributes are views into this MjData.
        mujoco.mj_resetData(env.model, env.data)
        mujoco.mj_forward(env.model, env.data)
        attributes = vars(env)
        attributes.clear()
        attributes.update((name, _own_copy(value)) for name, value in self._attributes.items())


def _changeable_fields(model: Any) -> list[Array]:
    """Return the model's arrays (as live views), without the large ones from asset files."""
    skipped = ("_", "bvh_", "mesh_", "names", "tex_")
    values = [getattr(model, name) for name in dir(model) if not name.startswith(skipped)]
    return [value for value in values if isinstance(value, np.ndarray) and value.size]


def _own_copy(value: Any) -> Any:
    """Return a copy of a container of numbers; other values and views into MuJoCo unchanged."""
    if isinstance(value, np.ndarray) and value.base is None:
        return value.copy()
    if isinstance(value, dict):
        return {name: _own_copy(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_own_copy(item) for item in value]
    return value


def _make_env(task: Task) -> Any:
    """Make the task's environment as MT1 does, without the 50 resets that draw MT1's goals."""
    from metaworld import Task as MetaworldTask
    from metaworld.sawyer_xyz_env import SawyerXYZEnv

    log_mujoco_warnings()
    task_class = _env_class(task)
    changes = {"_initialize_simulation": _initialize_simulation}
    env = type(task_class.__name__, (task_class,), changes)()
    # The goal is never used (unfrozen below); partially_observable=True would hide the goal.
    goal = {"env_cls": SawyerXYZEnv, "rand_vec": None, "partially_observable": False}
    env.set_task(MetaworldTask(env_name=task.name, data=pickle.dumps(goal)))
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    # Meta-World refuses to step past this limit. The caller has the horizon, and may drive the
    # robot to another pose before the first step.
    env.max_path_length = sys.maxsize
    for camera, position in MOVED_CAMERAS.items():
        env.model.camera(camera).pos[:] = position
    return env


def _env_class(task: Task) -> Any:
    """Return the class of the task's environment, the faster one if it is known to be the same."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    original = ALL_V3_ENVIRONMENTS[task.name]
    if not is_known_version():
        return original
    from proctor.benchmarks.metaworld.fast_env import fast_env_class

    return fast_env_class(original)


def _initialize_simulation(env: Any) -> tuple[Any, Any]:
    """Return model and data as gymnasium's ``MujocoEnv`` does, with a model from the cache."""
    import metaworld
    import mujoco

    assets = Path(metaworld.__file__).parent / "assets"
    model = load_model(Path(env.fullpath), assets)
    visual = model.vis.global_
    visual.offwidth = max(visual.offwidth, env.width)
    visual.offheight = max(visual.offheight, env.height)
    data_class = getattr(env, "data_class", mujoco.MjData)
    return model, data_class(model)
