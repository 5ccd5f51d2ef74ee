"""The render limit of a host: processes that only render, all at the same time.

Processes wait for each other before they begin, and only the best second in which all of them
render counts. A process that began early would render alone for a while, faster than its share.
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
from proctor.system.gl import gl_variables


@dataclass(frozen=True)
class Scenes:
    """The rendered scenes; the processes share the tasks."""

    tasks: tuple[str, ...]
    size: int
    shadow_map: int
    seconds: float = 4.0


@dataclass(frozen=True)
class Drawn:
    """The rendered frames of all processes."""

    moments: list[float]
    """When each image was complete."""
    begun: float
    over: float
    """The interval in which all processes rendered."""
    seconds: float
    picture: Array
    """The first of the first task, [H, W, 3]."""

    @property
    def rate(self) -> float:
        """Images per second."""
        return len(self.moments) / self.seconds

    @property
    def best(self) -> float:
        """Images in the best second in which all processes rendered."""
        return best_rate([m for m in self.moments if self.begun <= m <= self.over])


def drawn_together(what: Scenes, processes: int) -> Drawn:
    """Render in ``processes`` processes at once."""
    os.environ.update(gl_variables(needed=True))
    context = multiprocessing.get_context("spawn")
    ready, moments = context.Barrier(processes), context.Queue()
    tasks = [what.tasks[number * len(what.tasks) // processes] for number in range(processes)]
    loops = [
        context.Process(target=_draw, args=(what, place, ready, moments))
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
    return Drawn(together, begun, over, what.seconds, of_each[0][1])


def _draw(what: Scenes, place: tuple[int, str], ready: Any, moments: Any) -> None:
    number, task = place
    config = MetaworldConfig(task=task, observation_height=what.size, observation_width=what.size)
    config.shadow_map = what.shadow_map
    benchmark = Metaworld(config)
    (only,) = benchmark.tasks()
    sim = benchmark.make_sim(only)
    sim.reset(benchmark.spec(only, 0, 1000))
    first = sim.observe([IMAGE])[IMAGE]
    ready.wait(120)
    drawn, start = [], time.time()
    while time.time() - start < what.seconds:
        sim.observe([IMAGE])
        drawn.append(time.time())
    moments.put((number, (drawn, first)))
    sim.close()
