"""A benchmark of Proctor as a world, in an interpreter that has its simulator: Python >= 3.11.

Runs in the other interpreter, where this package is importable and its dependencies are not.
"""

from __future__ import annotations

import dataclasses
import importlib
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from proctor.benchmarks.base import Benchmark, BenchmarkPlugin, LocatedSim
from proctor.benchmarks.guarded_sim import GuardedSim
from proctor.benchmarks.isolated.expert_sim import ExpertSim, features_with_expert
from proctor.benchmarks.starts import pass_on_start
from proctor.errors import PluginError, SimulatorFault, UsageError
from proctor.fingerprint import to_json
from proctor.types import EpisodeSpec, Task
from proctor_worker.records import EXPERT_ACTION, Refused, Step
from proctor_worker.server import adapter_code


def make(config: dict[str, Any]) -> BuiltinWorld:
    """Make the benchmark of ``config``: the plug-in's place, and its flags."""
    module, _, attribute = config["plugin"].partition(":")
    plugin: BenchmarkPlugin = getattr(importlib.import_module(module), attribute)
    return BuiltinWorld(plugin, config["config"])


class BuiltinWorld:
    """The benchmark in this interpreter. The other side has an equal one, without a simulator."""

    def __init__(self, plugin: BenchmarkPlugin, fields: Mapping[str, Any]) -> None:
        config = config_from_json(plugin.config, fields)
        with _refusing():
            self._benchmark = plugin.maker(config)()

    def describe(self) -> dict[str, Any]:
        """Return what defines episodes here, and the variables of a process without images."""
        return {
            "distributions": list(self._benchmark.distributions),
            "variables": self.preflight(()),
        }

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Check that ``keys`` can be observed here; return variables for the process."""
        with _refusing():
            return self._benchmark.preflight([key for key in keys if key != EXPERT_ACTION])

    def open(self, task: dict[str, Any]) -> BuiltinSim:
        """Make the simulator of ``task``."""
        known = {task.key: task for task in self._benchmark.tasks()}
        return BuiltinSim(self._benchmark, known[task["suite"], task["task_id"]])


class BuiltinSim:
    """A simulator of the benchmark; an error of an adapter is marked as such."""

    def __init__(self, benchmark: Benchmark, task: Task) -> None:
        self._task = task
        sim = ExpertSim(benchmark, task)
        self._sim = GuardedSim(sim, features_with_expert(benchmark))
        if isinstance(sim, LocatedSim):
            self.coordinates = self._sim.coordinates
        pass_on_start(self, self._sim)

    def reset(self, spec: dict[str, Any]) -> None:
        """Reset the world."""
        episode = EpisodeSpec(self._task, spec["index"], spec["seed"], spec["init_state"])
        try:
            self._sim.reset(episode)
        except Exception as error:  # noqa: BLE001  raised again
            _raise_original(error)

    def step(self, action: Any) -> Step:
        """Advance the world."""
        try:
            step = self._sim.step(action)
        except Exception as error:  # noqa: BLE001  raised again
            _raise_original(error)
        return Step(step.reward, step.success, step.terminated, step.scores)

    def observe(self, keys: Sequence[str]) -> dict[str, Any]:
        """Observe ``keys``; the expert's action is computed here."""
        try:
            return self._sim.observe(keys)
        except Exception as error:  # noqa: BLE001  raised again
            _raise_original(error)

    def physics(self) -> Any:
        """Return the physics state."""
        try:
            return self._sim.physics()
        except Exception as error:  # noqa: BLE001  raised again
            _raise_original(error)

    def close(self) -> None:
        """Close the simulator."""
        self._sim.close()


def _raise_original(error: Exception) -> NoReturn:
    """Raise the simulator's own exception, or an adapter's with its mark."""
    if isinstance(error, PluginError):
        raise Refused(str(error), error.code) from None
    if isinstance(error, SimulatorFault) and error.__cause__ is not None:
        raise error.__cause__
    with adapter_code():
        raise error


class _refusing:  # noqa: N801  used as a context manager, like contextlib.suppress
    """Pass a ``UsageError`` on to the other side, with its code."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, UsageError):
            raise Refused(str(error), error.code) from error


def config_from_json(kind: type[Any], fields: Mapping[str, Any]) -> Any:
    """Return the config dataclass that ``to_json`` turned into ``fields``.

    Raises:
        Refused: a field has a type that JSON cannot carry.
    """
    hints = typing.get_type_hints(kind)
    known = {field.name for field in dataclasses.fields(kind)}
    values = {name: _value(hints[name], value) for name, value in fields.items() if name in known}
    config = kind(**values)
    if {name: value for name, value in to_json(config).items() if name in fields} != dict(fields):
        raise Refused(f"{kind.__name__} has fields that cannot be passed to another interpreter")
    return config


def _value(hint: Any, value: Any) -> Any:
    """Return a JSON value as the type of its field."""
    inside = [part for part in typing.get_args(hint) if part is not type(None)]
    origin = typing.get_origin(hint)
    if value is None:
        return None
    if origin in (typing.Union, types.UnionType):
        return _value(inside[0], value) if len(inside) == 1 else value
    if origin is dict:
        return {key: _value(inside[1], item) for key, item in value.items()}
    if origin in (list, tuple) and inside:
        return origin(_value(inside[0], item) for item in value)
    if isinstance(hint, type) and issubclass(hint, Enum | Path):
        return hint(value)
    return value
