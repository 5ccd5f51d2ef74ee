"""A gymnasium environment as a simulator, in this interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from proctor.benchmarks.guarded_sim import proctor_code
from proctor.errors import PluginError, WorkerError
from proctor.features import Array, Observation
from proctor.system.graphics.gl import gl_variables
from proctor.types import EpisodeSpec, StepResult
from proctor_worker.gym_env.sim import EnvSim
from proctor_worker.gym_env.success import SuccessRule
from proctor_worker.records import AdapterError, Refused


class GymSim:
    """Runs episodes in one environment. ``fresh``: every episode gets a new one."""

    def __init__(self, open_env: Callable[[], Any], rule: SuccessRule, *, fresh: bool) -> None:
        self._sim = EnvSim(open_env, rule, fresh, proctor_code, choose_backend)

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the environment with the spec's seed."""
        with _naming_the_environment():
            self._sim.reset({"seed": spec.seed, "max_steps": spec.task.max_steps})

    def step(self, action: Array) -> StepResult:
        """Take one step; termination or truncation by the environment ends the episode."""
        try:
            with _naming_the_environment():
                return StepResult(*self._sim.step(action))
        except AdapterError as error:
            raise WorkerError(str(error)) from None

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return ``keys`` of the last observation; only the video image is rendered."""
        with _naming_the_environment():
            return self._sim.observe(keys)

    def physics(self) -> Array:
        """Return all numbers of the last observation: other state is not accessible."""
        with _naming_the_environment():
            numbers: Array = self._sim.physics()
            return numbers

    def coordinates(self) -> dict[str, float]:
        """Return the numbers of the last observation, without images and long vectors."""
        with _naming_the_environment():
            return self._sim.coordinates()

    def close(self) -> None:
        """Close the environment."""
        self._sim.close()


class _naming_the_environment:  # noqa: N801  used as a context manager, like proctor_code
    """Raise a refusal, which names the environment, as a ``PluginError``."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Refused):
            raise PluginError(str(error), code=error.code) from None


def choose_backend() -> None:
    """Choose a GL backend for MuJoCo's images, unless one is chosen."""
    if "mujoco" in sys.modules and not os.environ.get("MUJOCO_GL"):
        os.environ.update(gl_variables(needed=True))
