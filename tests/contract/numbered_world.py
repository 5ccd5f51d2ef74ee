"""A world whose starts depend on the episode's index, and its benchmark."""

from __future__ import annotations

from typing import Any

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.isolated.plugin import WorldProbe, make_isolated
from proctor_worker.worlds.point import PointSim, PointWorld
from tests.unit.worker.point_world import PointConfig


class NumberedSim(PointSim):
    def reset(self, spec: dict[str, Any]) -> None:
        super().reset(spec)
        self._point = self._point + spec["index"]


class NumberedWorld(PointWorld):
    def open(self, task: dict[str, Any]) -> NumberedSim:
        return NumberedSim(self._config, task)


def make(config: dict[str, Any]) -> NumberedWorld:
    return NumberedWorld(config)


PLUGIN = BenchmarkPlugin(
    config=PointConfig,
    make=make_isolated,
    summary="starts that depend on the index",
    probe=WorldProbe(f"{__name__}:make", "numbered"),
    starts_interpreter=True,
)
