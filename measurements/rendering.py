"""The render limit of a host: several processes that only render, at the same time.

Processes wait for each other before they begin. Only the best second in which all of them render
counts: a process that began early would render faster alone.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from typing import Any

from measurements.gpu_limit import best_rate
from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig
from proctor.features import IMAGE, Array
from proctor.system.graphics.gl import gl_variables


@dataclass(frozen=True)
class Scenes:
    """The rendered scenes; the processes share the tasks."""

    tasks: tuple[str, ...]
    size: int
    shadow_map: int
    seconds: float = 4.0


@dataclass(frozen=True)
class RenderedFrames:
    """The rendered frames of all processes."""

    moments: list[float]
    """Times at which images were complete."""
    begun: float
    over: float
    """The interval in which all processes rendered."""
    seconds: float
    image: Array
    """The first image of the first task, [H, W, 3]."""

    @property
    def rate(self) -> float:
        """Images per second."""
        return len(self.moments) / self.seconds

    @property
    def best(self) -> float:
        """Images in the best second in which all processes rendered."""
        return best_rate([m for m in self.moments if self.begun <= m <= self.over])


def render_in_parallel(scenes: Scenes, processes: int) -> RenderedFrames:
    """Render in ``processes`` processes at once."""
    os.environ.update(gl_variables(needed=True))
    context = multiprocessing.get_context("spawn")
    ready, moments = context.Barrier(processes), context.Queue()
    tasks = [scenes.tasks[number * len(scenes.tasks) // processes] for number in range(processes)]
    loops = [
        context.Process(target=_render, args=(scenes, place, ready, moments))
        for place in enumerate(tasks)
    ]
    for loop in loops:
        loop.start()
    of_each = dict(moments.get(timeout=120) for _ in loops)
    for loop in loops:
        loop.join()
    seen = [moments for moments, _ in of_each.values()]
    begun, over = max(first for first, *_ in seen), min(last for *_, last in seen)
    together = [moment for one in seen for moment in one]
    return RenderedFrames(together, begun, over, scenes.seconds, of_each[0][1])


def _render(scenes: Scenes, place: tuple[int, str], ready: Any, moments: Any) -> None:
    number, task = place
    config = MetaworldConfig(
        task=task, observation_height=scenes.size, observation_width=scenes.size
    )
    config.shadow_map = scenes.shadow_map
    benchmark = Metaworld(config)
    (only,) = benchmark.tasks()
    sim = benchmark.make_sim(only)
    sim.reset(benchmark.spec(only, 0, 1000))
    first = sim.observe([IMAGE])[IMAGE]
    ready.wait(120)
    times, start = [], time.time()
    while time.time() - start < scenes.seconds:
        sim.observe([IMAGE])
        times.append(time.time())
    moments.put((number, (times, first)))
    sim.close()
