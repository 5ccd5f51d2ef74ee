"""The benchmark of the world ``proctor_worker.worlds.point``, as a plug-in of tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.isolated.plugin import isolated_plugin
from proctor.fingerprint import PRESENTATION


@dataclass
class PointConfig(BenchmarkConfig):
    type: str = "tests.unit.worker.point_world:PLUGIN"
    n_tasks: int = 1
    episode_length: int = 50
    image_size: int = 16
    refuse: str = ""
    faults: dict[str, str] = field(default_factory=dict, metadata=PRESENTATION)
    once_in: str | None = field(default=None, metadata=PRESENTATION)


PLUGIN = isolated_plugin("point", PointConfig, "a point must reach a goal, in another interpreter")
