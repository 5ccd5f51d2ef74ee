"""A world in this process: a worker that runs in the world's own interpreter needs no other one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.isolated.launch import Launch
from proctor.benchmarks.isolated.task_fields import spec_fields, task_fields
from proctor.benchmarks.starts import pass_on_start
from proctor.errors import PluginError, SimulatorFault, WorkerError
from proctor.features import Array, Feature, Observation
from proctor.types import EpisodeSpec, StepResult, Task
from proctor_worker.boundary import WrongValue
from proctor_worker.records import Refused, World
from proctor_worker.server import adapter_code, read_step

Returned = TypeVar("Returned")
_here = False


def run_worlds_here() -> None:
    """Open worlds in this process from now on: it runs in their interpreter."""
    global _here
    _here = True


def worlds_run_here() -> bool:
    """Return whether this process opens worlds itself."""
    return _here


class WorldSims:
    """Makes simulators of a world in this process: a ``SimFactory``."""

    def __init__(self, launch: Launch, features: Mapping[str, Feature]) -> None:
        self._launch, self._features = launch, features
        self._world: World | None = None

    def features(self) -> dict[str, Feature]:
        """Return the world's features."""
        return dict(self._features)

    def make_sim(self, task: Task) -> LocalSim:
        """Make the simulator of ``task``, and the world before the first one."""
        if self._world is None:
            module, _, function = self._launch.world.partition(":")
            make = getattr(importlib.import_module(module), function)
            self._world = _call(self._launch, make, self._launch.config)
        return LocalSim(self._launch, self._world, task)

    def sim_task(self, task: Task) -> Task:
        """Return ``task``: every task has simulators of its own."""
        return task


class LocalSim:
    """A simulator of a world in this process, with errors as those of a world in another one."""

    def __init__(self, launch: Launch, world: World, task: Task) -> None:
        self._launch, self.origin = launch, launch.origin
        self._sim: Any = _call(launch, world.open, task_fields(task))
        if hasattr(self._sim, "coordinates"):
            self.coordinates: Callable[[], Mapping[str, float]] = self._sim.coordinates
        pass_on_start(self, self._sim)

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the world."""
        _call(self._launch, self._sim.reset, spec_fields(spec))

    def step(self, action: Array) -> StepResult:
        """Advance the world by one action."""
        adapter_code.active = False
        try:
            reward, success, terminated, scores = read_step(self._sim.step(action))
        except Exception as error:  # noqa: BLE001  raised again
            _raise(self._launch, error)
        return StepResult(reward, success, terminated, scores or None)

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``."""
        return _call(self._launch, self._sim.observe, keys)

    def physics(self) -> Array:
        """Return the physics state."""
        return _call(self._launch, self._sim.physics)

    def close(self) -> None:
        """Close the simulator."""
        self._sim.close()


def _call(launch: Launch, method: Callable[..., Returned], *arguments: Any) -> Returned:
    """Call a world's method."""
    adapter_code.active = False
    try:
        return method(*arguments)
    except Exception as error:  # noqa: BLE001  raised again
        _raise(launch, error)


def _raise(launch: Launch, error: Exception) -> NoReturn:
    """Raise the error of a world as that of a simulator."""
    if isinstance(error, PluginError):
        raise error
    if isinstance(error, (Refused, WrongValue)):
        raise PluginError(f"{launch.origin}: {error}", code=error.code) from error
    with proctor_code():
        if adapter_code.active:
            raise WorkerError(f"{type(error).__name__}: {error}") from error
        raise SimulatorFault(f"{type(error).__name__} in the simulator") from error
