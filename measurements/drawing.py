"""What a host draws when it does nothing else: all processes at it together, moment by moment.

The sum of what each reaches in its own time says more than the host can do: who begins early draws
a while alone. So all wait for each other, and the best second in which all draw counts.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from typing import Any

from gpu_limit import best_rate

from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig
from proctor.features import IMAGE, Array
from proctor.machine.gl import gl_variables


@dataclass(frozen=True)
class Scenes:
    """What is drawn; the processes share the tasks."""

    tasks: tuple[str, ...]
    size: int
    shadow_map: int
    seconds: float = 4.0


REACH = Scenes(("reach-v3",), 480, 4096, 5.0)
"""Meta-World's own picture."""


@dataclass(frozen=True)
class Drawn:
    """What was reached."""

    moments: list[float]
    """When each picture was done."""
    begun: float
    over: float
    """When all were at it."""
    seconds: float
    picture: Array
    """The first of the first task, [H, W, 3]."""

    @property
    def rate(self) -> float:
        """Pictures a second."""
        return len(self.moments) / self.seconds

    @property
    def best(self) -> float:
        """Pictures in the best second in which all were at it."""
        return best_rate([m for m in self.moments if self.begun <= m <= self.over])


def drawn_together(what: Scenes, processes: int) -> Drawn:
    """Let ``processes`` do nothing but draw."""
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
