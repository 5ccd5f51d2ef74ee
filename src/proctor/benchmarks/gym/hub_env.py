"""Environments made by a third-party ``make_env``, one at a time."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from proctor.errors import UsageError
from proctor_worker.boundary import as_flag, as_tuple
from proctor_worker.gym_env.inspection import OpenedTask
from proctor_worker.gym_env.sim import RESET, STEP

_MODULE = "proctor_hub_environment"


@dataclass(frozen=True)
class HubOpener:
    """Runs the code of ``file``; made only after the user has allowed it."""

    file: Path
    name: str
    kwargs: dict[str, Any]

    @property
    def description(self) -> str:
        """Name of the environments in messages."""
        return self.name

    def tasks(self) -> list[OpenedTask]:
        """Open every environment that ``make_env`` returns."""
        return [_opened(suite, task_id, env) for (suite, task_id), env in self._all().items()]

    def task(self, suite: str, task_id: int) -> Any:
        """Open one environment; close the others that ``make_env`` made with it."""
        made = self._all()
        env = made.pop((suite, task_id))
        for other in made.values():
            other.close()
        return env

    def _all(self) -> dict[tuple[str, int], gymnasium.Env[Any, Any]]:
        made = _make_env(self.file, self.kwargs)
        if not isinstance(made, dict):
            made = {self.name: {0: made}}
        envs = {
            (str(suite), int(task_id)): _single(env)
            for suite, tasks in made.items()
            for task_id, env in tasks.items()
        }
        if not envs:
            raise UsageError(
                f"make_env of {self.file} returned no environment", code="env.invalid-make-env"
            )
        return envs


class SingleEnv(gymnasium.Env[Any, Any]):
    """The only environment of a vector environment, with any autoreset mode."""

    def __init__(self, vector: Any) -> None:
        if vector.num_envs != 1:
            raise UsageError(
                f"make_env(n_envs=1) returned {vector.num_envs} environments",
                code="env.invalid-make-env",
            )
        self.vector = vector
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        self.metadata = vector.metadata
        self.render_mode = vector.render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        made = self.vector.reset(seed=None if seed is None else [seed])
        observation, info = as_tuple(made, RESET)
        return _first(observation), _info_of_first(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment; at the end return the final observation, not the next reset's."""
        made = self.vector.step(np.asarray(action)[None])
        observation, reward, terminated, truncated, info = as_tuple(made, STEP)
        ended = as_flag(terminated[0], "terminated") or as_flag(truncated[0], "truncated")
        final = info.get("final_obs")
        current = _first(final if final is not None and ended else observation)
        return current, reward[0], terminated[0], truncated[0], _info_of_first(info)

    def render(self) -> Any:
        """Return the environment's rendered image."""
        images = self.vector.render()
        return None if images is None else images[0]

    def close(self) -> None:
        """Close the vector environment."""
        self.vector.close()


def _make_env(file: Path, kwargs: dict[str, Any]) -> Any:
    """Run ``file`` and call its ``make_env`` for one environment in this process."""
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # the file can import its neighbours
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
    make_env = getattr(module, "make_env", None)
    if not callable(make_env):
        raise UsageError(
            f"{file} defines no make_env(n_envs, use_async_envs, cfg)", code="env.invalid-make-env"
        )
    given = {"n_envs": 1, "use_async_envs": False, "cfg": SimpleNamespace(**kwargs)}
    parameters = inspect.signature(make_env).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return make_env(**{k: v for k, v in given.items() if takes_all or k in parameters})


def _single(made: Any) -> gymnasium.Env[Any, Any]:
    if isinstance(made, SyncVectorEnv) and made.num_envs == 1:
        return made.envs[0]
    if isinstance(made, VectorEnv):
        return SingleEnv(made)
    if isinstance(made, gymnasium.Env):
        return made
    raise UsageError(
        f"make_env returned a {type(made).__name__}, not a gymnasium environment",
        code="env.invalid-make-env",
    )


def _opened(suite: str, task_id: int, env: gymnasium.Env[Any, Any]) -> OpenedTask:
    values = [_attribute(env, name) for name in ("task_description", "task")]
    instructions = [text for text in values if isinstance(text, str) and text]
    horizon = env.spec.max_episode_steps if env.spec is not None else None
    if horizon is None:
        horizon = _attribute(env, "_max_episode_steps")
    return OpenedTask(
        suite,
        task_id,
        env,
        horizon=None if horizon is None else int(horizon),
        instruction=instructions[0] if instructions else None,
    )


def _attribute(env: gymnasium.Env[Any, Any], name: str) -> Any:
    """Return the attribute ``name`` of the environment, or None; also inside a vector one."""
    try:
        if isinstance(env, SingleEnv):
            return env.vector.unwrapped.get_attr(name)[0]
        return env.get_wrapper_attr(name)
    except AttributeError:
        return None


def _first(value: Any) -> Any:
    """Return the first sub-environment's part of a batched value."""
    if isinstance(value, dict):
        return {name: _first(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_first(item) for item in value)
    return value[0]


def _info_of_first(info: dict[str, Any]) -> dict[str, Any]:
    """Return the first sub-environment's info; ``final_info`` has priority."""
    final = info.get("final_info")
    current = {
        name: _info_of_first(value) if isinstance(value, dict) else value[0]
        for name, value in info.items()
        if not name.startswith("_") and name not in ("final_info", "final_obs")
    }
    return {**current, **(_info_of_first(final) if isinstance(final, dict) else {})}
