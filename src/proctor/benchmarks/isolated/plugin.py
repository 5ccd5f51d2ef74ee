"""Plug-ins of worlds in other interpreters. Light: ``proctor eval --help`` imports all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proctor.benchmarks.base import Benchmark, BenchmarkConfig, BenchmarkPlugin
from proctor.benchmarks.selection import LARGEST_SIDE, LONGEST_EPISODE, require_positive
from proctor.lerobot_flags import LerobotFlag

if TYPE_CHECKING:
    from proctor.benchmarks.isolated.benchmark import WorldFacts


@dataclass(frozen=True)
class WorldProbe:
    """Picklable probe of a world: starts it with the interpreter of the config."""

    world: str
    name: str

    def __call__(self, config: BenchmarkConfig) -> WorldFacts:
        """Return the world's facts."""
        from proctor.benchmarks.isolated.benchmark import probe_world, world_config
        from proctor.benchmarks.isolated.launch import Launch
        from proctor.benchmarks.recipes.installation import require_interpreter

        _check_ranges(config)
        python = config.python
        if python is None and config.command is None:
            python = str(require_interpreter(self.name))
        launch = Launch(self.world, world_config(config), python, config.command)
        return probe_world(launch)


_LARGEST = {
    "episode_length": LONGEST_EPISODE,
    "observation_height": LARGEST_SIDE,
    "observation_width": LARGEST_SIDE,
}
"""Flags that several worlds have, and their largest values."""


def _check_ranges(config: BenchmarkConfig) -> None:
    """Refuse numbers out of range, before anything starts."""
    for name, most in _LARGEST.items():
        value = getattr(config, name, None)
        if value is not None:
            require_positive(name, value, most)


def make_isolated(config: BenchmarkConfig, facts: WorldFacts) -> Benchmark:
    """Make the benchmark of a world that was probed."""
    from proctor.benchmarks.isolated.benchmark import IsolatedBenchmark

    return IsolatedBenchmark(config, facts)


def isolated_plugin(
    name: str,
    config: type[BenchmarkConfig],
    summary: str,
    groups: tuple[str, ...] = (),
    lerobot_flags: Mapping[str, LerobotFlag] | None = None,
) -> BenchmarkPlugin:
    """Return the plug-in of the world ``proctor_worker.worlds.NAME``."""
    return BenchmarkPlugin(
        config=config,
        make=make_isolated,
        summary=summary,
        lerobot_flags=lerobot_flags or {},
        groups=groups,
        probe=WorldProbe(f"proctor_worker.worlds.{name}:make", name),
        starts_interpreter=True,
    )
