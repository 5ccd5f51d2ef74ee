"""Meta-World's experts and the smooth ones: success with action noise and with wrong positions.

    python -m measurements metaworld_experts [--tasks=mt50] [--episodes=100] [--seed=700000]

Each expert plays the same episodes three times:

    as it is
    action noise  new normal noise of 0.3 on the hand's motion at every step
    8 mm wrong    positions of objects and goal have an error that is constant in an episode, normal
                  with 8 mm in each axis

"Change" is the mean change of an action in a step, summed over its four numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from measurements.command import machine, make_parser
from proctor.benchmarks.metaworld.benchmark import ExpertScripts, Metaworld, MetaworldConfig
from proctor.features import ENVIRONMENT_STATE, Array, Expert
from proctor.system.platform.platform_info import usable_cores
from proctor.types import Task

POSITIONS = [*range(4, 7), *range(11, 14), *range(36, 39)]
"""Object, second object and goal among the observation's numbers."""
ACTION_NOISE, WRONG_M = 0.3, 0.008
LONGEST = 300
"""Steps of an episode."""
KINDS = ("as it is", "action noise", "8 mm wrong")


@dataclass
class Tally:
    """The episodes of one expert of one kind."""

    episodes: int = 0
    solved: int = 0
    steps: int = 0
    change: float = 0.0

    def add(self, solved: bool, actions: Sequence[Array]) -> None:
        """Count an episode."""
        self.episodes += 1
        self.solved += solved
        self.steps += len(actions)
        self.change += float(np.abs(np.diff(actions, axis=0)).sum())

    def include(self, other: Tally) -> None:
        """Count another tally's episodes too."""
        self.episodes += other.episodes
        self.solved += other.solved
        self.steps += other.steps
        self.change += other.change

    def __str__(self) -> str:
        length = self.steps / self.episodes
        return f"{self.solved:>4}/{self.episodes} {length:>4.0f} {self.change / self.steps:>5.2f}"


def episode(
    sim: Any, expert: Expert, rng: np.random.Generator, kind: str
) -> tuple[bool, list[Any]]:
    """Play an episode; return whether it succeeded, and the expert's actions."""
    offset = np.zeros(39)
    offset[POSITIONS] = rng.normal(0, WRONG_M, len(POSITIONS)) * (kind == KINDS[2])
    actions: list[Any] = []
    for _ in range(LONGEST):
        seen = sim.observe((ENVIRONMENT_STATE,))[ENVIRONMENT_STATE] + offset
        action = np.clip(expert({ENVIRONMENT_STATE: seen}), -1, 1).astype(np.float32)
        actions.append(action.copy())
        if kind == KINDS[1]:
            action[:3] += rng.normal(0, ACTION_NOISE, 3)
        if sim.step(action).success:
            return True, actions
    return False, actions


def measure(name: str, episodes: int, seed: int) -> dict[str, list[Tally]]:
    """Play a task with both experts; return a tally for each kind."""
    tallies = {}
    for scripts in ExpertScripts:
        benchmark = Metaworld(MetaworldConfig(task=name, expert=scripts))
        (task,) = benchmark.tasks()
        sim = benchmark.make_sim(task)
        tallies[scripts.value] = [Tally() for _ in KINDS]
        for kind, tally in zip(KINDS, tallies[scripts.value], strict=True):
            for number in range(episodes):
                sim.reset(benchmark.spec(task, number, seed))
                rng = np.random.default_rng([seed, number])
                tally.add(*episode(sim, benchmark.expert(task), rng, kind))
        sim.close()
    return tallies


def rows(
    tasks: Sequence[Task], episodes: int, seed: int
) -> Iterator[tuple[str, dict[str, list[Tally]]]]:
    """Yield the tallies of every task, measured on all cores."""
    names = [task.name for task in tasks]
    with ProcessPoolExecutor(min(usable_cores(), len(names))) as pool:
        n = len(names)
        yield from zip(names, pool.map(measure, names, [episodes] * n, [seed] * n), strict=True)


def main(words: Sequence[str]) -> None:
    """Print each task's figures, and the sums."""
    parser = make_parser("metaworld_experts", __doc__)
    parser.add_argument("--tasks", default="mt50", help="tasks or splits, comma-separated")
    parser.add_argument("--episodes", type=int, default=100, help="episodes of each kind")
    parser.add_argument("--seed", type=int, default=700_000)
    asked = parser.parse_args(words)
    if asked.tiny:
        asked.tasks, asked.episodes = "reach-v3", 1
    print(machine())
    print(f"{'successes, steps, change':<40}" + "".join(f"{kind:>21}" for kind in KINDS))
    sums: dict[str, list[Tally]] = {
        scripts.value: [Tally() for _ in KINDS] for scripts in ExpertScripts
    }
    for name, tallies in rows(
        list(Metaworld(MetaworldConfig(task=asked.tasks)).tasks()), asked.episodes, asked.seed
    ):
        for scripts, kinds in tallies.items():
            show(name, scripts, kinds)
            for whole, tally in zip(sums[scripts], kinds, strict=True):
                whole.include(tally)
    for scripts, kinds in sums.items():
        show("all", scripts, kinds)


def show(task: str, scripts: str, kinds: Sequence[Tally]) -> None:
    """Print one row."""
    print(f"{task:<30}{scripts:<10}" + "".join(f"{tally!s:>21}" for tally in kinds), flush=True)
