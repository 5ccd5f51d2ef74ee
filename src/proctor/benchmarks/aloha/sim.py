"""ALOHA simulator: gym-aloha's worlds and rules, rendered only for observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from proctor.benchmarks.base import ROBOT, xyz
from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.mujoco.log import log_mujoco_warnings
from proctor.benchmarks.mujoco.render_config import RenderSettings
from proctor.benchmarks.mujoco.renderers import ImageRenderer, make_renderer
from proctor.benchmarks.mujoco.rendering import SceneEdit
from proctor.benchmarks.mujoco.world import world_state
from proctor.features import IMAGES, STATE, Array, Observation
from proctor.system.platform.environment import temporary_environment
from proctor.types import EpisodeSpec, StepResult
from proctor_worker.worlds.mujoco_tools import JointReader

# Otherwise dm_control loads a GL backend of its own choice, which we never use.
with temporary_environment({"MUJOCO_GL": "disable"}):
    from dm_control.mujoco import Physics
    from dm_control.rl.control import Environment
    from gym_aloha.constants import ASSETS_DIR, DT
    from gym_aloha.tasks.sim import BOX_POSE, InsertionTask, TransferCubeTask
    from gym_aloha.utils import sample_box_pose, sample_insertion_pose

_TOP = f"{IMAGES}top"
_FIRST_OBJECT = 16
"""Index of the first object's position in qpos: after the joints of both arms."""


class _Insertion(InsertionTask):  # type: ignore[misc]  # it comes without types
    """gym-aloha's insertion task without the three images that it renders after every step."""

    world = "bimanual_viperx_insertion.xml"
    objects = ("peg", "socket")

    def place_objects(self, seed: int) -> None:
        """Choose the poses of peg and socket for the next reset."""
        BOX_POSE[0] = np.concatenate(sample_insertion_pose(seed))

    def get_observation(self, physics: Any) -> dict[str, Array]:
        """Return nothing: a step must not render."""
        return {}


class _TransferCube(TransferCubeTask):  # type: ignore[misc]  # it comes without types
    """gym-aloha's transfer task without its images."""

    world = "bimanual_viperx_transfer_cube.xml"
    objects = ("cube",)

    def place_objects(self, seed: int) -> None:
        """Choose the pose of the cube for the next reset."""
        BOX_POSE[0] = sample_box_pose(seed)

    def get_observation(self, physics: Any) -> dict[str, Array]:
        """Return nothing: a step must not render."""
        return {}


_TASKS: dict[str, Any] = {"AlohaInsertion-v0": _Insertion, "AlohaTransferCube-v0": _TransferCube}


class AlohaSim:
    """One ALOHA world: two arms and their objects. dm_control's reset clears MuJoCo's state."""

    def __init__(self, task: str, render_settings: RenderSettings) -> None:
        log_mujoco_warnings()
        self._task = _TASKS[task](
            random=0
        )  # unused, but without a seed it reads the system's entropy
        self._physics = Physics.from_xml_path(str(ASSETS_DIR / self._task.world))
        self._env = Environment(self._physics, self._task, control_timestep=DT)
        self._joints = JointReader(self._physics.model.ptr)
        self._grippers = {
            f"{ROBOT} {side} gripper": self._physics.model.name2id(
                f"vx300s_{side}/gripper_link", "body"
            )
            for side in ("left", "right")
        }
        self._render_settings = render_settings
        self._renderer: ImageRenderer | None = None
        self.scene_edit: SceneEdit | None = None

    def reset(self, spec: EpisodeSpec) -> None:
        """Put the arms into their initial pose, and place the objects by the spec's seed."""
        self._task.place_objects(spec.seed)
        self._env.reset()

    def step(self, action: Array) -> StepResult:
        """Drive the joints towards ``action`` for 20 ms."""
        timestep = self._env.step(np.asarray(action, dtype=np.float32))
        with proctor_code():
            reward = float(timestep.reward)
            success = reward == self._task.max_reward
            return StepResult(reward=reward, success=success, terminated=success)

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``; the image key renders."""
        with proctor_code():
            return {key: self._observe(key) for key in keys}

    def physics(self) -> Array:
        """Return joint positions and velocities, and the poses of bodies and sites."""
        return world_state(self._physics.data)

    def coordinates(self) -> dict[str, float]:
        """Return the positions of the objects and of both grippers, in metres."""
        data = self._physics.data
        found: dict[str, float] = {}
        for number, name in enumerate(self._task.objects):
            begin = _FIRST_OBJECT + 7 * number
            found |= xyz(name, data.qpos[begin : begin + 3])
        for name, body in self._grippers.items():
            found |= xyz(name, data.xpos[body])
        return found

    def start_state(self) -> dict[str, float]:
        """Return the joints of both arms and the poses of the objects."""
        return self._joints.read(self._physics.data.qpos)

    def close(self) -> None:
        """Free the renderer and MuJoCo's model."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._physics.free()

    def _observe(self, key: str) -> Array:
        if key == _TOP:
            return self._render()
        if key == STATE:
            return np.asarray(self._task.get_qpos(self._physics), dtype=np.float32)
        raise KeyError(key)

    def _render(self) -> Array:
        if self._renderer is None:
            self._renderer = make_renderer(self._physics.model.ptr, self._render_settings)
        return self._renderer.render(self._physics.data.ptr, "top", self.scene_edit)
