"""One gymnasium environment as a simulator."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.gym.spaces import flatten_numbers, observation_entries, to_env_action
from proctor.benchmarks.gym.success import SuccessInputs, SuccessRule
from proctor.errors import WorkerError
from proctor.features import FILM, Array, Observation
from proctor.system.gl import gl_variables
from proctor.system.global_rng import SEED_BEFORE_RESET, seed_global_rng
from proctor.types import EpisodeSpec, StepResult

_QUIET_PYGAME = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_VIDEODRIVER": "dummy"}
"""Many environments draw by pygame, which greets, and looks for a screen it does not need."""


class GymSim:
    """Plays episodes on one environment; remembers only the last observation it was given.

    Where the environment does not forget an episode, each of them gets one of its own: ``fresh``.
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
        self._seen: Any = None
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
        self._seen, _ = self._env.reset(seed=spec.seed)
        self._steps, self._horizon = 0, spec.task.max_steps
        self._return, self._judged = 0.0, not self._rule.judges

    def step(self, action: Array) -> StepResult:
        """Take one step; the environment's own end, of either kind, ends the episode."""
        with proctor_code():
            given = to_env_action(self._env.action_space, action)
        self._seen, reward, terminated, truncated, info = self._env.step(given)
        with proctor_code():
            return self._judged_step(float(reward), bool(terminated), bool(truncated), info)

    def _judged_step(
        self, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> StepResult:
        """Return a step that the environment took, with the success rule's verdict."""
        self._steps += 1
        self._return += reward
        over = terminated or truncated
        ended = over or self._steps >= self._horizon
        success = self._verdict(SuccessInputs(reward, self._return, terminated, ended, info))
        return StepResult(reward=reward, success=success, terminated=over)

    def _verdict(self, inputs: SuccessInputs) -> bool | None:
        """Return whether the task is solved; None where no rule says so.

        Raises:
            WorkerError: info should have said it, and the episode has ended.
        """
        verdict = self._rule.judge(inputs)
        if not self._rule.judges:
            return None
        said = verdict is not None
        self._judged = said if self._rule.at_end else self._judged or said
        if not self._judged and inputs.ended:
            when = "at the end of" if self._rule.at_end else "in"
            raise WorkerError(
                f"info never held {'.'.join(self._rule.path)!r} {when} this episode, "
                "so whether it was solved is unknown"
            )
        return bool(verdict)

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return ``keys`` of the last observation; only the picture for videos is rendered."""
        with proctor_code():
            return {
                key: render(self._env) if key == FILM else self._entries[key].read(self._seen)
                for key in keys
            }

    def physics(self) -> Array:
        """Return all numbers of the last observation: what else there is, nobody can see."""
        with proctor_code():
            return flatten_numbers(self._env.observation_space, self._seen)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def render(env: Any) -> Array:
    """Return what the environment shows to people, uint8 [H, W, 3]."""
    if "mujoco" in sys.modules and not os.environ.get("MUJOCO_GL"):
        os.environ.update(gl_variables(needed=True))  # gymnasium reads it at the first picture
    for variable, value in _QUIET_PYGAME.items():
        os.environ.setdefault(variable, value)
    return np.array(env.render(), dtype=np.uint8)
