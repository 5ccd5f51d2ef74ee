"""A gymnasium environment as a simulator."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.gym.spaces import flatten_numbers, observation_entries, to_env_action
from proctor.benchmarks.gym.success import SuccessInputs, SuccessRule
from proctor.errors import WorkerError
from proctor.features import FILM, Array, FeatureKind, Observation
from proctor.system.gl import gl_variables
from proctor.system.global_rng import SEED_BEFORE_RESET, seed_global_rng
from proctor.types import EpisodeSpec, StepResult

_MAX_NUMBERS = 32
"""Size of a vector whose numbers are shown as coordinates."""
_QUIET_PYGAME = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_VIDEODRIVER": "dummy"}
"""Many environments render with pygame, which prints a greeting and looks for a screen."""


class GymSim:
    """Runs episodes in one environment and stores the last observation.

    ``fresh``: every episode gets a new environment, since it carries state over.
    """

    def __init__(self, open_env: Callable[[], Any], rule: SuccessRule, *, fresh: bool) -> None:
        self._open = open_env
        self._fresh = fresh
        self._env = open_env()
        self._used = False
        self._rule = rule
        self._entries = {
            entry.key: entry for entry in observation_entries(self._env.observation_space)
        }
        self._observation: Any = None
        self._steps = self._horizon = 0
        self._return = 0.0
        self._judged = False

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the environment with the spec's seed."""
        if self._fresh and self._used:
            self._env.close()
            seed_global_rng(SEED_BEFORE_RESET)
            self._env = self._open()
            seed_global_rng(spec.seed)
        self._used = True
        self._observation, _ = self._env.reset(seed=spec.seed)
        self._steps, self._horizon = 0, spec.task.max_steps
        self._return, self._judged = 0.0, not self._rule.judges

    def step(self, action: Array) -> StepResult:
        """Take one step; termination or truncation by the environment ends the episode."""
        with proctor_code():
            given = to_env_action(self._env.action_space, action)
        self._observation, reward, terminated, truncated, info = self._env.step(given)
        with proctor_code():
            return self._judged_step(float(reward), bool(terminated), bool(truncated), info)

    def _judged_step(
        self, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> StepResult:
        """Return the result of a step, with the success rule's verdict."""
        self._steps += 1
        self._return += reward
        over = terminated or truncated
        ended = over or self._steps >= self._horizon
        success = self._verdict(SuccessInputs(reward, self._return, terminated, ended, info))
        return StepResult(reward=reward, success=success, terminated=over)

    def _verdict(self, inputs: SuccessInputs) -> bool | None:
        """Return whether the task is solved; None without a success rule.

        Raises:
            WorkerError: the episode has ended, and ``info`` never had the success key.
        """
        verdict = self._rule.judge(inputs)
        if not self._rule.judges:
            return None
        known = verdict is not None
        self._judged = known if self._rule.at_end else self._judged or known
        if not self._judged and inputs.ended:
            when = "at the end of" if self._rule.at_end else "in"
            raise WorkerError(
                f"info never had {'.'.join(self._rule.path)!r} {when} this episode, "
                "so its success is unknown"
            )
        return bool(verdict)

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return ``keys`` of the last observation; only the video image is rendered."""
        with proctor_code():
            return {
                key: render(self._env)
                if key == FILM
                else self._entries[key].read(self._observation)
                for key in keys
            }

    def physics(self) -> Array:
        """Return all numbers of the last observation: other state is not accessible."""
        with proctor_code():
            return flatten_numbers(self._env.observation_space, self._observation)

    def coordinates(self) -> dict[str, float]:
        """Return the numbers of the last observation, without images and long vectors."""
        found: dict[str, float] = {}
        for key, entry in self._entries.items():
            feature = entry.feature
            if feature.kind is not FeatureKind.VISUAL and math.prod(feature.shape) <= _MAX_NUMBERS:
                name = key.removeprefix("observation.")
                values = np.ravel(entry.read(self._observation))
                found |= {f"{name} {number}": float(at) for number, at in enumerate(values)}
        return found

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def render(env: Any) -> Array:
    """Return the environment's rendered image, uint8 [H, W, 3]."""
    if "mujoco" in sys.modules and not os.environ.get("MUJOCO_GL"):
        os.environ.update(gl_variables(needed=True))  # gymnasium reads it at the first rendering
    for variable, value in _QUIET_PYGAME.items():
        os.environ.setdefault(variable, value)
    return np.array(env.render(), dtype=np.uint8)
