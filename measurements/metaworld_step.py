"""CPU time of Meta-World's steps, resets and experts, as the package has them and as Proctor does.

    python -m measurements metaworld_step [--tasks=mt50] [--rounds=3] [--steps=100]

Both play the same actions of the expert, task by task. A figure is the least of the rounds, in CPU
time of the thread; nothing is drawn. Each reset has another seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np

from measurements.command import machine, make_parser
from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig
from proctor.features import ENVIRONMENT_STATE
from proctor.types import Task

VERSION_CHECKS = (
    "proctor.benchmarks.metaworld.sim.is_known_version",
    "proctor.benchmarks.metaworld.benchmark.is_known_version",
)
FIGURES = ("step us", "reset us", "expert us")


def measure(benchmark: Metaworld, task: Task, rounds: int, steps: int) -> list[float]:
    """Return the microseconds of a step, a reset and an action of the expert."""
    sim, expert = benchmark.make_sim(task), benchmark.expert(task)
    first = benchmark.spec(task, 0, 0)
    sim.reset(first)
    observations, actions = [], []
    for _ in range(steps):
        observations.append(sim.observe((ENVIRONMENT_STATE,)))
        actions.append(expert(observations[-1]))
        sim.step(actions[-1])
    least = [float("inf")] * 3
    for number in range(1, rounds + 1):
        other = benchmark.spec(task, number, number)
        reset_us = timed(lambda spec=other: sim.reset(spec))  # type: ignore[misc]
        sim.reset(first)
        step_us = timed(lambda: [sim.step(action) for action in actions]) / steps
        expert_us = timed(lambda: [expert(seen) for seen in observations]) / steps
        least = [min(pair) for pair in zip(least, (step_us, reset_us, expert_us), strict=True)]
    sim.close()
    return least


def timed(call: Callable[[], object]) -> float:
    """Return the thread's CPU time in a call, in microseconds."""
    start = time.thread_time()
    call()
    return (time.thread_time() - start) * 1e6


def main(words: Sequence[str]) -> None:
    """Measure all tasks both ways and print them, and the means."""
    parser = make_parser("metaworld_step", __doc__)
    parser.add_argument("--tasks", default="mt50", help="tasks or splits, comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    asked = parser.parse_args(words)
    tasks, rounds, steps = asked.tasks, asked.rounds, asked.steps
    if asked.tiny:
        tasks, rounds, steps = "reach-v3", 1, 3
    benchmark = Metaworld(MetaworldConfig(task=tasks))
    print(machine())
    print(f"{'Meta-World / Proctor':<30}" + "".join(f"{name:>18}" for name in FIGURES))
    rows = []
    for task in benchmark.tasks():
        by_sim, by_benchmark = (mock.patch(check, return_value=False) for check in VERSION_CHECKS)
        with by_sim, by_benchmark:
            own = measure(benchmark, task, rounds, steps)
        rows.append((own, measure(benchmark, task, rounds, steps)))
        show(task.name, *rows[-1])
    own, ours = np.mean(rows, axis=0).tolist()
    show("mean", own, ours)
    ratios = [f"{before / after:.2f}x" for before, after in zip(own, ours, strict=True)]
    print(f"{'ratio of the means':<30}" + "".join(f"{ratio:>18}" for ratio in ratios))


def show(name: str, own: list[float], ours: list[float]) -> None:
    """Print one row."""
    pairs = [f"{before:.0f} / {after:.0f}" for before, after in zip(own, ours, strict=True)]
    print(f"{name:<30}" + "".join(f"{pair:>18}" for pair in pairs), flush=True)
