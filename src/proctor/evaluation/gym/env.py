"""One task as a ``gymnasium.Env`` for reinforcement-learning libraries."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces

from proctor.evaluation.gym.lerobot_names import observation_space
from proctor.evaluation.gym.sim_env import SimEnv, SimEnvParts
from proctor.features import Array


class GymEnv(SimEnv):
    """A ``gymnasium.Env`` in this process whose observation is a flat Dict of arrays.

    Several cameras are named ``pixels.NAME``. The simulator opens at the first reset.
    """

    def __init__(self, parts: SimEnvParts) -> None:
        super().__init__(parts)
        self.observation_space = spaces.Dict(_flat(observation_space(self._features).spaces))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode with ``seed``, or with the next seed of this environment."""
        observation, info = super().reset(seed=seed, options=options)
        return _flat(observation), info

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one step.

        Raises:
            ResetNeeded: there is no episode, or it has ended.
        """
        if self._episode is None or self._episode.ended:
            raise gymnasium.error.ResetNeeded("the episode has ended or not begun; call reset")
        observation, reward, terminated, truncated, info = super().step(action)
        return _flat(observation), reward, terminated, truncated, info


def _flat(nested: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping without nested mappings, joining names by dots."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict | spaces.Dict):
            inner = value.spaces if isinstance(value, spaces.Dict) else value
            flat |= {f"{name}.{key}": item for key, item in inner.items()}
        else:
            flat[name] = value
    return flat
