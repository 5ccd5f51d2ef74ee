"""A gymnasium environment as a simulator."""

import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, Sequence

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

from proctor_worker.boundary import WrongValue, as_declared, as_flag, as_number, as_tuple
from proctor_worker.gym_env.spaces import action_converter, flatten_numbers, observation_entries
from proctor_worker.gym_env.success import SuccessInputs, SuccessRule
from proctor_worker.records import AdapterError, Refused, Step
from proctor_worker.rng import SEED_BEFORE_RESET, seed_global_rng
from proctor_worker.server import adapter_code

FILM = "observation.film"
RESET = "reset: observation, info"
STEP = "step: observation, reward, terminated, truncated, info"
_MAX_NUMBERS = 32
"""Size of a vector whose numbers are shown as coordinates."""
_QUIET_PYGAME = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_VIDEODRIVER": "dummy"}
"""Many environments render with pygame, which prints a greeting and looks for a screen."""


def choose_egl() -> None:
    """Render MuJoCo's images with EGL, unless a backend is chosen or there is a screen."""
    if "mujoco" in sys.modules and sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


class EnvSim:
    """Runs episodes in one environment and stores the last observation.

    ``fresh``: every episode gets a new environment, since it carries state over. Blocks within
    ``own_code`` are the adapter's code, not the environment's.
    """

    def __init__(
        self,
        open_env: Callable[[], Any],
        rule: SuccessRule,
        fresh: bool,
        own_code: Callable[[], Any] = adapter_code,
        choose_backend: Callable[[], None] = choose_egl,
    ) -> None:
        self._open = open_env
        self._fresh = fresh
        self._own_code = own_code()
        self._choose_backend = choose_backend
        self._env = open_env()
        self._to_env_action = action_converter(self._env.action_space)
        self._used = False
        self._rule = rule
        self._entries = {
            entry.key: entry for entry in observation_entries(self._env.observation_space)
        }
        self._numbers = {
            (key[len("observation.") :] if key.startswith("observation.") else key): entry
            for key, entry in self._entries.items()
            if entry.kind != "VISUAL" and int(np.prod(entry.shape)) <= _MAX_NUMBERS
        }
        """Features that are shown as coordinates, by name."""
        self._observation: Any = None
        self._steps = self._horizon = 0
        self._return = 0.0
        self._judged = False

    def reset(self, spec: Dict[str, Any]) -> None:
        """Reset the environment with the spec's seed."""
        if self._fresh and self._used:
            self._env.close()
            seed_global_rng(SEED_BEFORE_RESET)
            self._env = self._open()
            self._to_env_action = action_converter(self._env.action_space)
            seed_global_rng(spec["seed"])
        self._used = True
        with Naming(self._env):
            made = self._env.reset(seed=spec["seed"])
            with self._own_code:
                self._observation, _ = as_tuple(made, RESET)
        self._steps, self._horizon = 0, spec["max_steps"]
        self._return, self._judged = 0.0, not self._rule.judges

    def step(self, action: Any) -> Step:
        """Take one step; termination or truncation by the environment ends the episode."""
        with self._own_code:
            given = self._to_env_action(action)
        with Naming(self._env):
            made = self._env.step(given)
            with self._own_code:
                self._observation, reward, terminated, truncated, info = as_tuple(made, STEP)
                return self._judged_step(
                    as_number(reward, "the reward"),
                    as_flag(terminated, "terminated"),
                    as_flag(truncated, "truncated"),
                    info,
                )

    def _judged_step(
        self, reward: float, terminated: bool, truncated: bool, info: Dict[str, Any]
    ) -> Step:
        """Return the result of a step, with the success rule's verdict."""
        self._steps += 1
        self._return += reward
        over = terminated or truncated
        ended = over or self._steps >= self._horizon
        success = self._verdict(SuccessInputs(reward, self._return, terminated, ended, info))
        return Step(reward, success, over)

    def _verdict(self, inputs: SuccessInputs) -> Any:
        """Return whether the task is solved; None without a success rule.

        Raises:
            AdapterError: the episode has ended, and ``info`` never had the success key.
        """
        verdict = self._rule.judge(inputs)
        if not self._rule.judges:
            return None
        known = verdict is not None
        self._judged = known if self._rule.at_end else self._judged or known
        if not self._judged and inputs.ended:
            when = "at the end of" if self._rule.at_end else "in"
            raise AdapterError(
                "info never had %r %s this episode, so its success is unknown"
                % (".".join(self._rule.path), when)
            )
        return bool(verdict)

    def observe(self, keys: Sequence[str]) -> Dict[str, Any]:
        """Return ``keys`` of the last observation; only the video image is rendered."""
        with self._own_code, Naming(self._env):
            return {
                key: render(self._env, self._choose_backend)
                if key == FILM
                else self._entries[key].read(self._observation)
                for key in keys
            }

    def physics(self) -> Any:
        """Return all numbers of the last observation: other state is not accessible."""
        with self._own_code, Naming(self._env):
            return flatten_numbers(self._env.observation_space, self._observation)

    def coordinates(self) -> Dict[str, float]:
        """Return the numbers of the last observation, without images and long vectors."""
        with Naming(self._env):
            return {
                "%s %d" % (name, number): at
                for name, entry in self._numbers.items()
                for number, at in enumerate(entry.read(self._observation).ravel().tolist())
            }

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class Naming:
    """Name the environment that gave a wrong value.

    Raises:
        Refused: a value is wrong.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, WrongValue):
            env = self._env.unwrapped
            theirs = type(getattr(env, "vector", env))
            text = "%s.%s: %s" % (theirs.__module__, theirs.__qualname__, error)
            raise Refused(text, error.code) from None


def render(env: Any, choose_backend: Callable[[], None]) -> Any:
    """Return the environment's rendered image, uint8 [H, W, 3]."""
    choose_backend()  # gymnasium reads the choice at the first rendering
    for variable, value in _QUIET_PYGAME.items():
        os.environ.setdefault(variable, value)
    return np.array(as_declared(env.render(), "uint8", "its rendered image"))
