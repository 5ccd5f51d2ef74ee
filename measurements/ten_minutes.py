"""From nothing to an evaluated policy on a GPU host: record, train, correct, train on, evaluate.

    python -m measurements ten_minutes all --tasks=eight --work=/dev/shm/eight
    python -m measurements ten_minutes record train --tasks=mt50 --work=DIR   (the others later)

One language-conditioned policy from pixels for all tasks (docs/guides/many_tasks.md). The stages
are `proctor` commands, printed as they run. They may run in several sessions: WORK/times.json keeps
the time of each. Demonstrations have other seeds than the final evaluation.

    record    demonstrations of the scripted experts, half of them with action noise
    train     a first policy on the demonstrations
    correct   episodes of that policy, labelled with the experts' actions (DAgger)
    train-on  more optimiser steps on both datasets
    examine   evaluation on unseen seeds, and the mean of Meta-World's four groups

Further rounds of corrections are for the tasks that the policy fails most often. Name their stages,
once for each round (``quick again finish quick again finish``):

    quick     a short evaluation, on seeds of its own, that measures every task
    again     corrections by the newest policy of the --weakest tasks of that evaluation: those that
              cost the mean of the four groups most
    finish    more optimiser steps on all datasets: --last and --last_lr, a number for each round

Two other stages are not part of "all". They need a trained policy in WORK:

    choose    short evaluations with each number of --choices as actions executed per inference
              call, on seeds of its own; examine and perturb use the best
    perturb   the same evaluation with --perturb: clean episodes, and each dimension at 3 levels

``--paraphrases`` trains on several wordings of each instruction. `perturb --perturb=language`
evaluates wordings that are not among them.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from measurements.command import PROCTOR, machine, make_parser
from proctor.benchmarks.metaworld.tasks import TASKS
from proctor.runs.journal import read_journal
from proctor.stats.rates import rate_text
from proctor.types import Outcome

EIGHT = (
    "drawer-open-v3,button-press-v3,peg-insert-side-v3,basketball-v3,assembly-v3,hand-insert-v3,"
    "stick-push-v3,disassemble-v3"
)
RECORDED_FROM, CORRECTED_FROM, EXAMINED_FROM = 200_000, 300_000, 1000
MEASURED_FROM, CORRECTED_AGAIN_FROM, CHOSEN_FROM = 400_000, 500_000, 600_000
ROUND = 10_000
"""Seeds between two rounds of the same stage."""
CROP_FLAGS = "--policy.random_shift=6 --policy.crop=[46,60,128,128]"
"""Crop images of 192x192 to the table with the objects of Meta-World's tasks."""
CHOSEN = "chosen.json"
TINY = {
    "tasks": "reach-v3", "size": 64, "shadow_map": 64, "workers": 2, "loaders": 0, "demos": 1,
    "corrected": 1, "steps": 3, "more": 3, "batch": 2, "episodes": 1, "horizon": 10,
    "weakest": 1, "corrected_again": 1, "last": "3", "measured": 1, "choices": "5,10",
    "device": "cpu",
    "further": "--policy.dim_model=32 --policy.dim_feedforward=32 --policy.n_heads=2",
}  # fmt: skip
TRAININGS = ("first", "second", "third", "fourth", "fifth", "sixth")
"""Names of the trainings in their order; each begins with the weights of the one before."""
STAGES = ("record", "train", "correct", "train-on", "examine")
FURTHER_ROUNDS = ("quick", "again", "finish")
CHOOSE, PERTURB = "choose", "perturb"


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the flags."""
    parser = make_parser("ten_minutes", __doc__, ("all", *STAGES, *FURTHER_ROUNDS, CHOOSE, PERTURB))
    parser.add_argument("--tasks", default="eight", help="eight, or what --env.task takes")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--size", type=int, default=192, help="image side, pixels")
    parser.add_argument("--shadow_map", type=int, default=1024)
    parser.add_argument("--renderer", choices=("gl", "warp"), default="gl")
    parser.add_argument("--renderer_python", help="interpreter of renderer warp")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--loaders", type=int, default=12, help="data loader processes")
    parser.add_argument("--demos", type=int, default=50, help="demonstrations per task")
    parser.add_argument("--corrected", type=int, default=24, help="corrected episodes per task")
    parser.add_argument("--correct_tasks", help="tasks of the stage correct (default: all)")
    parser.add_argument(
        "--by_frames", action="store_true", help="sample frames uniformly, not tasks"
    )
    parser.add_argument(
        "--steps", type=int, default=4500, help="optimiser steps of the first training"
    )
    parser.add_argument(
        "--more", type=int, default=8500, help="optimiser steps of the second training"
    )
    parser.add_argument("--weakest", type=int, default=12, help="tasks of the stage again")
    parser.add_argument(
        "--measured", type=int, default=5, help="episodes per task of the stages quick and choose"
    )
    parser.add_argument(
        "--corrected_again", type=int, default=24, help="episodes per task of the stage again"
    )
    parser.add_argument("--last", default="6000", help="optimiser steps of finish, of each round")
    parser.add_argument("--paraphrases", action="store_true", help="several wordings of each task")
    parser.add_argument(
        "--drop",
        action="store_true",
        help="remove datasets once they are merged: WORK is in memory",
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--last_lr", default="2e-4", help="learning rates of finish, of each round")
    parser.add_argument(
        "--clip", type=float, default=1.0, help="maximum gradient norm of train-on and finish"
    )
    parser.add_argument(
        "--warm_up", type=int, default=1000, help="warm-up steps of train-on and finish"
    )
    parser.add_argument("--episodes", type=int, default=25, help="evaluation episodes per task")
    parser.add_argument("--every", type=int, default=10, help="actions executed per inference call")
    parser.add_argument("--choices", default="5,10", help="values of --every that choose tries")
    parser.add_argument("--perturb", default="all", help="dimensions of the stage perturb")
    parser.add_argument("--videos", type=int, default=1, help="videos per perturbed task")
    parser.add_argument("--horizon", type=int, default=500, help="maximum steps of an evaluation")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--further", default=CROP_FLAGS, help="further flags of both trainings")
    options = parser.parse_args(words)
    if options.tiny:
        vars(options).update(TINY)
    if options.tasks == "eight":
        options.tasks = EIGHT
    if not options.parts or "all" in options.parts:
        options.parts = [*STAGES, *(part for part in options.parts if part in (CHOOSE, PERTURB))]
    return options


def renderer_flags(options: argparse.Namespace) -> list[str]:
    """Return the flags of the renderer; only GL has a shadow map."""
    if options.renderer == "gl":
        return [f"--env.shadow_map={options.shadow_map}"]
    flags = ["--env.renderer=warp", f"--env.renderer_device={options.device}"]
    python = options.renderer_python
    return [*flags, f"--env.renderer_python={python}"] if python else flags


class Work:
    """The stages and their times."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, options.work
        self.folder.mkdir(parents=True, exist_ok=True)
        self.world = [
            "--env.type=metaworld",
            f"--env.observation_height={options.size}",
            f"--env.observation_width={options.size}",
            *renderer_flags(options),
            f"--eval.batch_size={options.workers}",
        ]

    def run(self, stage: str) -> None:
        """Run one stage and store its time, with the round's number for those that may repeat."""
        start = time.perf_counter()
        name = f"{stage}-{self.round_number()}" if stage in FURTHER_ROUNDS else stage
        {
            "record": self.record,
            "train": self.train,
            "correct": self.correct,
            "train-on": self.train_on,
            "quick": self.quick,
            "again": self.again,
            "finish": self.finish,
            "examine": self.examine,
            CHOOSE: self.choose,
            PERTURB: self.perturb,
        }[stage]()
        times = self.times() | {name: round(time.perf_counter() - start, 1)}
        (self.folder / "times.json").write_text(json.dumps(times))
        said = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in times.items())
        print(f"== {said}: {sum(times.values()) / 60:.1f} minutes", flush=True)

    def times(self) -> dict[str, float]:
        """Return the seconds of every stage so far."""
        path = self.folder / "times.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def record(self) -> None:
        """Record the experts."""
        self.proctor(
            "record",
            "--policy.type=expert",
            *self.kept_in("demos", self.options.demos, RECORDED_FROM),
            f"--env.task={self.options.tasks}",
            "--record.noise=0.3",
            "--record.noise_share=0.5",
            "--record.noise_dims=[0,1,2]",
            "--env.episode_length=250",
        )

    def correct(self) -> None:
        """Record the first policy with the experts' actions as labels."""
        tasks = self.options.correct_tasks or self.options.tasks
        recording = self.kept_in("corrections", self.options.corrected, CORRECTED_FROM)
        self.label("first", tasks, recording)
        self.merge("demos", "corrections", into="both")

    def label(self, policy: str, tasks: str, recording: Sequence[str]) -> None:
        """Record a policy's episodes with the experts' actions as labels."""
        self.proctor(
            "record",
            f"--policy.path={self.policy(policy)}",
            f"--policy.n_action_steps={self.options.every}",
            "--record.label=expert",
            *recording,
            f"--env.task={tasks}",
            f"--env.episode_length={10 if self.options.tiny else 200}",
        )

    def merge(self, *names: str, into: str) -> None:
        """Merge datasets."""
        folders = [str(self.folder / name) for name in names]
        self.proctor("data", "merge", *folders, f"--output={self.folder / into}")
        for folder in folders if self.options.drop else ():
            shutil.rmtree(folder)

    def quick(self) -> None:
        """Measure every task with few episodes, on seeds that nothing else uses."""
        measured, every = self.options.measured, self.options.every
        number = self.round_number()
        seed = MEASURED_FROM + ROUND * number
        self.evaluate(f"quick-{number}", measured, seed, every, "--video.episodes=0")
        print_groups(self.folder / f"quick-{number}")

    def choose(self) -> None:
        """Find the best number of actions per inference call, on seeds that nothing else uses."""
        rates = {}
        for every in map(int, self.options.choices.split(",")):
            name = f"choose-{every}"
            self.evaluate(name, self.options.measured, CHOSEN_FROM, every, "--video.episodes=0")
            rates[every] = print_groups(self.folder / name)
        best = max(rates, key=lambda every: rates[every])
        print(f"== actions per inference call: {best}", flush=True)
        (self.folder / CHOSEN).write_text(json.dumps(best))

    def chosen_every(self) -> int:
        """Return the number of actions per inference call that ``choose`` found, or --every."""
        path = self.folder / CHOSEN
        return int(json.loads(path.read_text()) if path.exists() else self.options.every)

    def again(self) -> None:
        """Record corrections of the weakest tasks of the stage quick."""
        number = self.round_number()
        tasks = weakest_tasks(self.folder / f"quick-{number}", self.options.weakest)
        print(f"== weakest tasks: {', '.join(tasks)}", flush=True)
        name, seed = f"corrections-{number}", CORRECTED_AGAIN_FROM + ROUND * number
        recording = self.kept_in(name, self.options.corrected_again, seed)
        self.label(self.newest(), ",".join(tasks), recording)
        self.merge("both" if number == 1 else f"all-{number - 1}", name, into=f"all-{number}")

    def finish(self) -> None:
        """Continue on all datasets at a lower rate."""
        number = self.round_number()
        steps = int(_of_round(self.options.last, number))
        lr = float(_of_round(self.options.last_lr, number))
        before, name = TRAININGS[number], TRAININGS[number + 1]
        self.learn_on(before, name, f"all-{number}", steps, lr)

    def kept_in(self, name: str, episodes: int, seed: int) -> list[str]:
        """Return the flags of a recording."""
        return [
            *self.world,
            f"--dataset.root={self.folder / name}",
            "--dataset.video=false",
            f"--record.n_episodes={episodes}",
            f"--seed={seed}",
        ]

    def train(self) -> None:
        """Train from random weights."""
        steps, lr = self.options.steps, self.options.lr
        self.learn("first", "demos", steps, lr, "--policy.type=language_act")

    def train_on(self) -> None:
        """Continue from the averaged weights of the first training."""
        self.learn_on("first", "second", "both", self.options.more, self.options.lr)

    def learn_on(self, before: str, name: str, dataset: str, steps: int, lr: float) -> None:
        """Train from averaged weights. The optimiser's moments start empty: warm up, and clip."""
        self.learn(
            name,
            dataset,
            steps,
            lr,
            f"--policy.path={self.policy(before)}",
            f"--scheduler.num_warmup_steps={min(self.options.warm_up, steps // 5)}",
            f"--optimizer.grad_clip_norm={self.options.clip}",
        )

    def learn(self, name: str, dataset: str, steps: int, lr: float, *flags: str) -> None:
        """Train; ``flags`` name the policy."""
        options = self.options
        paraphrases = str(options.paraphrases).lower()
        self.proctor(
            "train",
            *flags,
            f"--policy.device={options.device}",
            f"--dataset.root={self.folder / dataset}",
            f"--dataset.balance_tasks={str(not options.by_frames).lower()}",
            f"--dataset.paraphrase_tasks={paraphrases}",
            "--dataset.cache=ram",
            "--dataset.cache_gb=80",
            f"--batch_size={options.batch}",
            f"--steps={steps}",
            f"--save_freq={max(1, steps // 5)}",
            f"--log_freq={max(1, steps // 20)}",
            f"--num_workers={options.loaders}",
            "--ema.enable=true",
            f"--optimizer.lr={lr}",
            f"--output_dir={self.folder / name}",
            *(["--accelerator.mixed_precision=bf16"] if options.device == "cuda" else []),
            *shlex.split(options.further),
        )

    def policy(self, name: str) -> Path:
        """Return the path of a training's averaged weights."""
        path: Path = self.folder / name / "checkpoints/last/pretrained_model_ema"
        return path

    def newest(self) -> str:
        """Return the name of the last training."""
        return TRAININGS[self.round_number()]

    def round_number(self) -> int:
        """Return the number of the round that continues the last training; 0: no training yet."""
        trained = [name for name in TRAININGS if (self.folder / name).exists()]
        return max(0, len(trained) - 1)

    def examine(self) -> None:
        """Evaluate the last policy on unseen seeds."""
        episodes, every = self.options.episodes, self.chosen_every()
        self.evaluate("examined", episodes, EXAMINED_FROM, every, "--video.episodes=0")
        print_groups(self.folder / "examined")

    def perturb(self) -> None:
        """Evaluate the last policy with perturbed tasks beside the clean ones."""
        self.evaluate(
            "perturbed",
            self.options.episodes,
            EXAMINED_FROM,
            self.chosen_every(),
            f"--perturb={self.options.perturb}",
            f"--video.episodes={self.options.videos}",
        )

    def evaluate(self, name: str, episodes: int, seed: int, every: int, *flags: str) -> None:
        """Evaluate the last policy from ``seed`` on, into the run folder ``name``."""
        options = self.options
        self.proctor(
            "eval",
            f"--policy.path={self.policy(self.newest())}",
            f"--policy.device={options.device}",
            f"--policy.n_action_steps={every}",
            *self.world,
            f"--env.task={options.tasks}",
            f"--env.episode_length={options.horizon}",
            f"--eval.n_episodes={episodes}",
            f"--seed={seed}",
            f"--output_dir={self.folder / name}",
            *flags,
        )

    def proctor(self, *words: str) -> None:
        """Print and run a ``proctor`` command."""
        print("$ proctor", shlex.join(words), flush=True)
        subprocess.run([*PROCTOR, *words], check=True)  # noqa: S603  our own command


def _of_round(numbers: str, number: int) -> str:
    """Return the value of a round among comma-separated ones; the last one is for all later."""
    values = numbers.split(",")
    return values[min(number, len(values)) - 1]


def weakest_tasks(run: Path, n: int) -> list[str]:
    """Return the ``n`` tasks of a run that cost the mean of the groups most, in that order.

    A failure in a group of five tasks costs the mean more than one in a group of 28.
    """
    lost = {
        task: (1 - solved / played) / len(tasks)
        for tasks in tallies(run).values()
        for task, (solved, played) in tasks.items()
    }
    return sorted(lost, key=lambda task: -lost[task])[:n]


def tallies(run: Path) -> dict[str, dict[str, list[int]]]:
    """Return successes and episodes of each task, by Meta-World's groups; in the plan's order."""
    group_of = {row.name: row.split for row in TASKS}
    counts: dict[str, dict[str, list[int]]] = {
        name: defaultdict(lambda: [0, 0]) for name in ("easy", "medium", "hard", "very_hard")
    }
    for row in sorted(read_journal(run).rows, key=lambda row: (row.task_id, row.episode_index)):
        if not row.outcome.counts:
            raise SystemExit(f"{row.key} did not end: {row.outcome}")
        tally = counts[group_of[row.task]][row.task]
        tally[0] += row.outcome is Outcome.SUCCESS
        tally[1] += 1
    return {name: tasks for name, tasks in counts.items() if tasks}


def print_groups(run: Path) -> float:
    """Print the rate of each of Meta-World's groups, their mean, and the weakest tasks.

    Returns:
        The mean of the groups, from 0 to 1.
    """
    by_group = tallies(run)
    sums = {name: _sums(tasks.values()) for name, tasks in by_group.items()}
    for name, (solved, played) in (*sums.items(), ("all", _sums(sums.values()))):
        print(f"{name:<10} {rate_text(solved, played)}")
    rates = {name: solved / played for name, (solved, played) in sums.items()}
    spread = math.sqrt(sum(p * (1 - p) / sums[name][1] for name, p in rates.items()))
    mean, half = sum(rates.values()) / len(rates), 1.96 * spread / len(rates)
    print(f"mean of {len(rates)} groups {100 * mean:.1f}% +- {100 * half:.1f} (normal, 95%)")
    of_task = {task: tally for tasks in by_group.values() for task, tally in tasks.items()}
    weakest = sorted(of_task, key=lambda name: of_task[name][0] / of_task[name][1])[:15]
    print("weakest:", ", ".join(f"{n} {of_task[n][0]}/{of_task[n][1]}" for n in weakest))
    return mean


def _sums(counted: Iterable[Sequence[int]]) -> tuple[int, int]:
    """Return the sums of successes and of episodes."""
    solved, played = zip(*counted, strict=True)
    return sum(solved), sum(played)


def main(words: Sequence[str]) -> None:
    """Run the named stages, or all."""
    options = parse(words)
    print(machine(), flush=True)
    work = Work(options)
    for stage in options.parts:
        work.run(stage)
