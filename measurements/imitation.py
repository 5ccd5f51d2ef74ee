"""How well a policy learns from Meta-World's experts and from the smooth ones, on noisy positions.

    python -m measurements imitation --expert=smooth [--tasks=mt50] [--seed=0] [--noise_mm=6]

A small network learns all tasks from demonstrations, and from rounds of its own episodes that the
experts label (DAgger). It sees hand and fingers exactly. Positions of objects and goal have an
error that is constant in an episode, and a new one of half its size at each step. That is a model
of an image policy's perception, not measured from one: the rates are not those of `ten_minutes`.
Ten to twenty minutes on one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from measurements.command import machine, make_parser
from measurements.metaworld_experts import POSITIONS
from proctor.benchmarks.metaworld.benchmark import ExpertScripts, Metaworld, MetaworldConfig
from proctor.callbacks.action_labels import ExpertLabeling
from proctor.features import ENVIRONMENT_STATE, Array
from proctor.stats.rates import rate_text

CHUNK, BATCH, WIDTH, LR = 10, 256, 256, 1e-3
RECORDED_FROM, CORRECTED_FROM, EVALUATED_FROM, ROUND = 200_000, 300_000, 1000, 10_000
ACTION_NOISE = 0.3
NUMBERS = [*range(4), *POSITIONS]
"""The observation's numbers that the network sees."""
TINY = {"demos": 2, "corrected": 1, "rounds": 1, "steps": 3, "last": 3, "episodes": 1,
        "tasks": "reach-v3,push-v3", "horizon": 30}  # fmt: skip


class Network(nn.Module):
    """Residual MLP: numbers [B, 13] and task ids [B] to chunks of actions [B, 10, 4]."""

    def __init__(self, n_tasks: int, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.mean, self.std = nn.Buffer(mean), nn.Buffer(std)
        self.task = nn.Embedding(n_tasks, 64)
        self.first = nn.Linear(len(mean) + 64, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)
            )
            for _ in range(3)
        )
        self.last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * CHUNK))

    def forward(self, seen: Tensor, task: Tensor) -> Tensor:
        """Return the next actions."""
        x = self.first(torch.cat(((seen - self.mean) / self.std, self.task(task)), -1))
        for block in self.blocks:
            x = x + block(x)
        actions: Tensor = self.last(x).unflatten(-1, (CHUNK, 4))
        return actions


@dataclass
class Play:
    """How episodes are played: by the experts, or by a policy."""

    first_seed: int
    episodes: int
    horizon: int
    policy: Callable[[Tensor, Tensor], Tensor] | None = None
    expert_share: float = 0.0
    noisy_share: float = 0.0
    """Share of episodes with noise on the hand's motion."""


@dataclass
class Episode:
    """A running episode of one task, and what is recorded of it."""

    number: int
    rng: np.random.Generator
    expert: Any
    offset: Array
    is_noisy: bool
    seen: list[Array] = field(default_factory=list)
    labels: list[Array] = field(default_factory=list)
    planned: list[Array] = field(default_factory=list)


@dataclass(frozen=True)
class Finished:
    """A finished episode of a task."""

    task: int
    solved: bool
    seen: Array
    labels: Array


class Worlds:
    """A simulator for each task. Episodes of different tasks run side by side."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.benchmark = Metaworld(
            MetaworldConfig(task=options.tasks, expert=ExpertScripts(options.expert))
        )
        self.tasks = list(self.benchmark.tasks())
        self.sims: list[Any] = [self.benchmark.make_sim(task) for task in self.tasks]
        self.noise_m, self.every, self.seed = options.noise_mm / 1000, options.every, options.seed

    def play(self, how: Play) -> list[Finished]:
        """Play episodes of every task."""
        running = {task: self._start(task, 0, how) for task in range(len(self.tasks))}
        finished = []
        while running:
            self._observe_and_plan(running, how)
            for task, episode in list(running.items()):
                solved = self._step(task, episode, how)
                if not solved and len(episode.seen) < how.horizon:
                    continue
                seen, labels = np.stack(episode.seen), np.stack(episode.labels)
                finished.append(Finished(task, solved, seen, labels))
                del running[task]
                if episode.number + 1 < how.episodes:
                    running[task] = self._start(task, episode.number + 1, how)
        return finished

    def _start(self, task: int, number: int, how: Play) -> Episode:
        spec = self.benchmark.spec(self.tasks[task], number, how.first_seed)
        self.sims[task].reset(spec)
        rng = np.random.default_rng([spec.seed, task, self.seed])
        offset = self.noise_m * rng.normal(size=len(POSITIONS))
        expert = self.benchmark.expert(self.tasks[task])
        return Episode(number, rng, expert, offset, bool(rng.random() < how.noisy_share))

    def _observe_and_plan(self, running: Mapping[int, Episode], how: Play) -> None:
        for task, episode in running.items():
            numbers = self._numbers(task)
            jitter = self.noise_m / 2 * episode.rng.normal(size=len(POSITIONS))
            numbers[POSITIONS] += episode.offset + jitter
            episode.seen.append(numbers[NUMBERS].astype(np.float32))
        waiting = {task: episode for task, episode in running.items() if not episode.planned}
        if how.policy is not None and waiting:
            newest = torch.from_numpy(np.stack([episode.seen[-1] for episode in waiting.values()]))
            with torch.no_grad():
                chunks = how.policy(newest, torch.tensor(list(waiting))).numpy()
            for episode, chunk in zip(waiting.values(), chunks, strict=True):
                episode.planned = list(chunk[: self.every])

    def _step(self, task: int, episode: Episode, how: Play) -> bool:
        step = len(episode.labels)
        label = np.clip(episode.expert({ENVIRONMENT_STATE: self._numbers(task)}), -1, 1)
        episode.labels.append(label.astype(np.float32))
        action = episode.planned.pop(0) if how.policy is not None else label
        spec = self.benchmark.spec(self.tasks[task], episode.number, how.first_seed)
        if ExpertLabeling(how.expert_share).expert_acts(spec, step):
            action = label
        if episode.is_noisy:
            action = action + np.append(episode.rng.normal(0, ACTION_NOISE, 3), 0)
        return bool(self.sims[task].step(action).success)

    def _numbers(self, task: int) -> Array:
        numbers: Array = self.sims[task].observe((ENVIRONMENT_STATE,))[ENVIRONMENT_STATE]
        return numbers


class Training:
    """Optimises a network and its averaged copy on all episodes so far."""

    def __init__(self, n_tasks: int, demos: Sequence[Finished]) -> None:
        seen = torch.from_numpy(np.concatenate([episode.seen for episode in demos]))
        mean, std = seen.mean(0), seen.std(0).clamp(min=0.01)
        self.network, self.averaged = (Network(n_tasks, mean, std) for _ in range(2))
        self.averaged.load_state_dict(self.network.state_dict())
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=LR, weight_decay=1e-3)
        self.step = 0

    def run(self, episodes: Sequence[Finished], steps: int, *, decay: bool = False) -> float:
        """Train; with ``decay`` the rate falls to 0. Return the mean loss of the last steps."""
        seen, tasks, labels, inside = batches_of(episodes)
        losses = []
        for number in range(steps):
            rows = torch.randint(len(seen), (BATCH,))
            error = (self.network(seen[rows], tasks[rows]) - labels[rows]).abs()
            loss = (error * inside[rows][..., None]).mean()
            for group in self.optimizer.param_groups:
                group["lr"] = LR * min(1, self.step / 200) * (1 - number / steps if decay else 1)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            self._average()
            losses.append(loss.detach())
        return float(torch.stack(losses[-200:]).mean())

    def _average(self) -> None:
        share = 1 - min(0.999, self.step / (self.step + 9))
        with torch.no_grad():
            for mean, weight in zip(
                self.averaged.parameters(), self.network.parameters(), strict=True
            ):
                mean.lerp_(weight, share)


def batches_of(episodes: Sequence[Finished]) -> Iterator[Tensor]:
    """Yield inputs, task ids, chunks of labels, and which of those are inside the episode."""
    columns: list[list[Array]] = [[], [], [], []]
    for episode in episodes:
        n = len(episode.seen)
        index = np.arange(n)[:, None] + np.arange(CHUNK)
        chunks = episode.labels[np.minimum(index, n - 1)]
        for column, rows in zip(
            columns, (episode.seen, np.full(n, episode.task), chunks, index < n), strict=True
        ):
            column.append(rows)
    return (torch.from_numpy(np.concatenate(column)) for column in columns)


def main(words: Sequence[str]) -> None:
    """Train a policy and print its success on unseen seeds."""
    options = parse(words)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    print(machine(expert=options.expert, seed=options.seed, noise_mm=options.noise_mm), flush=True)
    start, worlds = time.perf_counter(), Worlds(options)
    other_seeds = 1000 * options.seed
    demos = Play(RECORDED_FROM + other_seeds, options.demos, 250, noisy_share=0.5)
    data = [episode for episode in worlds.play(demos) if episode.solved]
    training = Training(len(worlds.tasks), data)
    for number in range(options.rounds):
        training.run(data, options.steps if number == 0 else options.steps // 2)
        seed = CORRECTED_FROM + ROUND * number + other_seeds
        corrected = Play(seed, options.corrected, 200, training.averaged, options.expert_share)
        data += worlds.play(corrected)
    loss = training.run(data, options.last, decay=True)
    evaluation = Play(EVALUATED_FROM, options.episodes, options.horizon, training.averaged)
    done = worlds.play(evaluation)
    for task, row in enumerate(worlds.tasks):
        mine = [episode for episode in done if episode.task == task]
        steps = sum(len(episode.seen) for episode in mine) / len(mine)
        print(f"{row.name:<30} {sum(e.solved for e in mine):>4}/{len(mine)} {steps:>5.0f} steps")
    print(f"loss {loss:.4f}, {sum(len(e.seen) for e in data):,} frames")
    print(f"all {rate_text(sum(e.solved for e in done), len(done))}", end=" ")
    print(f"in {time.perf_counter() - start:.0f} s")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the flags."""
    parser = make_parser("imitation", __doc__)
    parser.add_argument("--expert", choices=[e.value for e in ExpertScripts], default="smooth")
    parser.add_argument("--tasks", default="mt50", help="tasks or splits, comma-separated")
    parser.add_argument("--noise_mm", type=float, default=6.0, help="error of positions, normal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--demos", type=int, default=20, help="demonstrations per task")
    parser.add_argument("--corrected", type=int, default=10, help="per task and round")
    parser.add_argument("--expert_share", type=float, default=0.4, help="of corrected steps")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8000, help="before the first round")
    parser.add_argument("--last", type=int, default=16_000, help="steps after the last round")
    parser.add_argument("--every", type=int, default=3, help="actions executed per inference")
    parser.add_argument("--episodes", type=int, default=20, help="evaluation episodes per task")
    parser.add_argument("--horizon", type=int, default=500, help="steps of an evaluation episode")
    options = parser.parse_args(words)
    if options.tiny:
        vars(options).update(TINY)
    return options
