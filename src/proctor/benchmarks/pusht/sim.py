"""PushT simulator: gym-pusht's world, rendered only for observations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from proctor.benchmarks.base import ROBOT, xyz
from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.pusht import COVERAGE
from proctor.features import ENVIRONMENT_STATE, FILM, IMAGE, STATE, Array, Observation
from proctor.types import EpisodeSpec, StepResult

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

# After the variable is set: pygame, which gym-pusht imports, prints a greeting otherwise.
import pygame
from gym_pusht.envs.pusht import PushTEnv, pymunk_to_shapely

_RGB_MASKS = (0x0000FF, 0x00FF00, 0xFF0000, 0)


class _World(PushTEnv):  # type: ignore[misc]  # it comes without types
    """gym-pusht's environment without the observation after every step, and faster.

    States and pixels keep their bits. gym-pusht computes the coverage from a set of shapes, whose
    order depends on memory addresses and changes the last bit. Here the order is fixed.
    """

    def get_obs(self) -> None:
        """Return nothing: a step must not render."""

    def _setup(self) -> None:
        super()._setup()
        self._goal = pymunk_to_shapely(self.get_goal_pose_body(self.goal_pose), self._block_shapes)

    def _handle_collision(self, *_: object) -> None:
        """Count no contacts: nothing reads their number."""

    def _get_coverage(self) -> float:
        """Return the covered part of the target, whose polygon is made once per episode."""
        block = pymunk_to_shapely(self.block, self._block_shapes)
        return float(self._goal.intersection(block).area / self._goal.area)

    def _draw(self) -> Any:
        """Return the scene with packed RGB pixels, which are copied to an array 5 times faster."""
        drawn = super()._draw()
        packed = pygame.Surface(drawn.get_size(), 0, 24, _RGB_MASKS)
        packed.blit(drawn, (0, 0))
        return packed


class PushTSim:
    """One PushT world. A reset makes a new physics space, so episodes are independent.

    Sizes are (height, width).
    """

    def __init__(self, observation_size: tuple[int, int], video_size: tuple[int, int]) -> None:
        self._env: Any = _World(
            obs_type="environment_state_agent_pos",
            observation_height=observation_size[0],
            observation_width=observation_size[1],
            visualization_height=video_size[0],
            visualization_width=video_size[1],
        )

    def reset(self, spec: EpisodeSpec) -> None:
        """Place finger and block by the spec's seed."""
        self._env._last_action = None  # gym-pusht draws it in videos and does not reset it
        self._env.reset(seed=spec.seed)

    def step(self, action: Array) -> StepResult:
        """Pull the finger towards ``action`` for 0.1 s."""
        _, reward, terminated, _, info = self._env.step(np.asarray(action, dtype=np.float32))
        with proctor_code():
            solved = bool(info["is_success"])
            scores = {COVERAGE: float(info["coverage"])}
            return StepResult(
                float(reward), success=solved, terminated=bool(terminated), scores=scores
            )

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``; image keys render."""
        with proctor_code():
            return {key: self._observe(key) for key in keys}

    def physics(self) -> Array:
        """Return position, angle and velocity of finger and block."""
        agent, block = self._env.agent, self._env.block
        return np.array(
            [
                *agent.position,
                *agent.velocity,
                *block.position,
                block.angle,
                *block.velocity,
                block.angular_velocity,
            ],
            dtype=np.float64,
        )

    def coordinates(self) -> dict[str, float]:
        """Return the pose of the block and the position of the finger, in the window's units."""
        agent, block = self._env.agent, self._env.block
        return {
            **xyz("block", block.position),
            "block angle": float(block.angle) % (2 * np.pi),
            **xyz(f"{ROBOT} finger", agent.position),
        }

    start_tolerance = 1e-3
    """Of a window of 512 units, which float32 does not resolve further than 3e-5."""

    def start_state(self) -> dict[str, float]:
        """Return the poses of block and target, and the position of the finger."""
        x, y, angle = map(float, self._env.goal_pose)
        return {**self.coordinates(), "goal x": x, "goal y": y, "goal angle": angle}

    def close(self) -> None:
        """Free the environment."""
        self._env.close()

    def _observe(self, key: str) -> Array:
        if key == IMAGE:
            return np.asarray(self._env._render(visualize=False))
        if key == FILM:
            return np.asarray(self._env._render(visualize=True))
        if key == STATE:
            return np.array(self._env.agent.position, dtype=np.float32)
        if key == ENVIRONMENT_STATE:
            corners = self._env.get_keypoints(self._env._block_shapes)
            return np.asarray(corners.flatten(), dtype=np.float32)
        raise KeyError(key)
