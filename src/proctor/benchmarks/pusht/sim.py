"""One PushT simulator: gym-pusht's world, drawn only when somebody looks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from proctor.benchmarks.guarded_sim import proctor_code
from proctor.features import ENVIRONMENT_STATE, FILM, IMAGE, STATE, Array, Observation
from proctor.types import EpisodeSpec, StepResult

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

# Only now: pygame, which it imports, has been told not to greet.
from gym_pusht.envs.pusht import PushTEnv


class _World(PushTEnv):  # type: ignore[misc]  # it comes without types
    """gym-pusht's environment without the observation it makes after every step."""

    def get_obs(self) -> None:
        """Observe nothing: a step must not draw."""


class PushTSim:
    """One PushT world. A reset makes a new physics space, so nothing is left of the last episode.

    Sizes are (height, width).
    """

    def __init__(self, seen: tuple[int, int], filmed: tuple[int, int]) -> None:
        self._env: Any = _World(
            obs_type="environment_state_agent_pos",
            observation_height=seen[0],
            observation_width=seen[1],
            visualization_height=filmed[0],
            visualization_width=filmed[1],
        )

    def reset(self, spec: EpisodeSpec) -> None:
        """Put finger and block where the spec's seed says."""
        self._env._last_action = None  # drawn in videos, and kept by gym-pusht's reset
        self._env.reset(seed=spec.seed)

    def step(self, action: Array) -> StepResult:
        """Pull the finger towards ``action`` for a tenth of a second."""
        _, reward, terminated, _, info = self._env.step(np.asarray(action, dtype=np.float32))
        with proctor_code():
            solved = bool(info["is_success"])
            return StepResult(float(reward), success=solved, terminated=bool(terminated))

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``; image keys draw."""
        with proctor_code():
            return {key: self._observe(key) for key in keys}

    def physics(self) -> Array:
        """Return place, angle and speed of the finger and the block."""
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
