"""Plug-ins of worlds in other interpreters. Light: ``proctor eval --help`` imports all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proctor.benchmarks.base import Benchmark, BenchmarkConfig, BenchmarkPlugin
from proctor.lerobot_flags import LerobotFlag

if TYPE_CHECKING:
    from proctor.benchmarks.foreign.benchmark import WorldFacts


@dataclass(frozen=True)
class WorldProbe:
    """Picklable probe of a world: starts it with the interpreter of the config."""

    world: str
    name: str
    check: Callable[[Any], None] | None = None
    """Refuses bad flags before anything starts."""

    def __call__(self, config: BenchmarkConfig) -> WorldFacts:
        """Return the world's facts.

        Raises:
            UsageError: a flag is wrong, no interpreter is given or installed, or the world cannot
                be used there.
        """
        from proctor.benchmarks.foreign.benchmark import probe_world, world_config
        from proctor.benchmarks.foreign.launch import Launch
        from proctor.benchmarks.recipes.installation import require_interpreter

        if self.check is not None:
            self.check(config)
        python = config.python
        if python is None and config.command is None:
            python = str(require_interpreter(self.name))
        launch = Launch(self.world, world_config(config), python, config.command)
        return probe_world(launch)


def make_foreign(config: BenchmarkConfig, facts: WorldFacts) -> Benchmark:
    """Make the benchmark of a world that was probed."""
    from proctor.benchmarks.foreign.benchmark import ForeignBenchmark

    return ForeignBenchmark(config, facts)


def foreign_plugin(
    name: str,
    config: type[BenchmarkConfig],
    summary: str,
    groups: tuple[str, ...] = (),
    check: Callable[[Any], None] | None = None,
    lerobot_flags: Mapping[str, LerobotFlag] | None = None,
) -> BenchmarkPlugin:
    """Return the plug-in of the world ``proctor_worker.worlds.NAME``.

    ``check`` refuses bad flags before the world's process is started.
    """
    return BenchmarkPlugin(
        config=config,
        make=make_foreign,
        summary=summary,
        lerobot_flags=lerobot_flags or {},
        groups=groups,
        probe=WorldProbe(f"proctor_worker.worlds.{name}:make", name, check),
        starts_interpreter=True,
    )
