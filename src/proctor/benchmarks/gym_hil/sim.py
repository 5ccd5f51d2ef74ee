"""gym_hil simulator: its worlds and rules, without a window, and rendered only for observations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from gym_hil import mujoco_gym_env
from gym_hil.envs import PandaArrangeBoxesGymEnv, PandaPickCubeGymEnv
from gym_hil.mujoco_gym_env import MAX_GRIPPER_COMMAND

from proctor.benchmarks.base import ROBOT, xyz
from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.gym_hil.hand_control import HandController
from proctor.benchmarks.gym_hil.tasks import ARRANGE, CAMERAS, PICK
from proctor.benchmarks.mujoco.log import log_mujoco_warnings
from proctor.benchmarks.mujoco.render_config import RenderSettings
from proctor.benchmarks.mujoco.rendering import CameraRenderer, SceneEdit
from proctor.benchmarks.mujoco.world import world_state
from proctor.features import ENVIRONMENT_STATE, STATE, Array, Observation
from proctor.system.global_rng import IsolatedRng, seed_global_rng
from proctor.types import CLOSEST, EpisodeSpec, StepResult
from proctor_worker.worlds.mujoco_tools import JointReader

STEP_M = 0.025
"""Motion of the hand for an action of 1, as gym_hil's wrapped environments have it."""
_BLOCK = {PICK.name: "block_pos", ARRANGE.name: "block1_pos"}
"""Sensor of the block whose position is observed."""


@dataclass(frozen=True)
class SimSettings:
    """Images, where the cube is, and the penalty of flipping the gripper."""

    rendering: RenderSettings
    random_block_position: bool
    gripper_penalty: float


class GymHilSim:
    """One Panda with a cube, or with five boxes."""

    def __init__(self, task: str, settings: SimSettings) -> None:
        log_mujoco_warnings()
        self._env = _opened(task, settings)
        self._env.apply_action = HandController(self._env).apply
        self._block = _BLOCK[task]
        self._joints = JointReader(self._env.model)
        self._settings = settings
        self._renderer: CameraRenderer | None = None
        self._rng = IsolatedRng()
        self._penalty = 0.0
        self.scene_edit: SceneEdit | None = None

    def reset(self, spec: EpisodeSpec) -> None:
        """Put the arm into its home pose, and place the blocks by the spec's seed.

        gym_hil draws from numpy's global generator and does not seed it.
        """
        with self._rng.activated():
            seed_global_rng(spec.seed)
            self._env.reset()
        self._penalty = 0.0

    def step(self, action: Array) -> StepResult:
        """Move the hand for 0.1 s."""
        with proctor_code():
            motion = STEP_M * np.asarray(action[:3], np.float64)
            command = float(np.float32(action[3]) - np.float32(1.0))
            self._penalty = self._settings.gripper_penalty if self._flips(command) else 0.0
        rotation = (0.0, 0.0, 0.0)
        _, reward, ended, _, info = self._env.step(np.array([*motion, *rotation, command]))
        with proctor_code():
            block, hand = self._sensor(self._block), self._sensor("2f85/pinch_pos")
            return StepResult(
                reward=float(reward),
                success=bool(info["succeed"]),
                terminated=bool(ended),
                scores={CLOSEST: float(np.linalg.norm(block - hand))},
            )

    def discrete_penalty(self) -> float:
        """Return the penalty of the last action's gripper command."""
        return self._penalty

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``; image keys render."""
        with proctor_code():
            return {key: self._observe(key) for key in keys}

    def physics(self) -> Array:
        """Return joint positions and velocities, and the poses of bodies and sites."""
        return world_state(self._env.data)

    def coordinates(self) -> dict[str, float]:
        """Return the positions of the observed block and of the hand, in metres."""
        return {
            **xyz("block", self._sensor(self._block)),
            **xyz(f"{ROBOT} hand", self._sensor("2f85/pinch_pos")),
        }

    def start_state(self) -> dict[str, float]:
        """Return the joints of the arm and the poses of all blocks."""
        return self._joints.read(self._env.data.qpos)

    def close(self) -> None:
        """Free the renderer."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _flips(self, command: float) -> bool:
        """Tell whether a command moves a closed gripper to open, or an open one to closed."""
        gripper = float(self._env.get_gripper_pose()[0]) / MAX_GRIPPER_COMMAND
        return (command < -0.5 and gripper > 0.9) or (command > 0.5 and gripper < 0.1)

    def _observe(self, key: str) -> Array:
        if key == STATE:
            return np.asarray(self._env.get_robot_state(), dtype=np.float32)
        if key == ENVIRONMENT_STATE:
            return self._sensor(self._block).astype(np.float32)
        return self._render(CAMERAS[key])

    def _sensor(self, name: str) -> Array:
        return np.array(self._env.data.sensor(name).data)

    def _render(self, camera: str) -> Array:
        if self._renderer is None:
            self._renderer = CameraRenderer(self._env.model, self._settings.rendering)
        return self._renderer.render(self._env.data, camera, self.scene_edit)


def _opened(task: str, settings: SimSettings) -> Any:
    """Return gym_hil's base environment of a task; it computes states, and we render."""
    with _without_renderer():
        if task == ARRANGE.name:
            return PandaArrangeBoxesGymEnv()
        return PandaPickCubeGymEnv(random_block_position=settings.random_block_position)


class _NoRenderer:
    """Stands in for the renderer that gym_hil opens even if nothing is rendered."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def render(self) -> None:
        """Render nothing."""


@contextmanager
def _without_renderer() -> Iterator[None]:
    """Let gym_hil open environments without a GL context."""
    kept = mujoco_gym_env.mujoco
    mujoco_gym_env.mujoco = _MujocoWithout()
    try:
        yield
    finally:
        mujoco_gym_env.mujoco = kept


class _MujocoWithout:
    """The module mujoco, with ``_NoRenderer`` as its renderer."""

    Renderer = _NoRenderer

    def __getattr__(self, name: str) -> Any:
        return getattr(mujoco, name)
