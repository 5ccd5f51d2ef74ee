"""From nothing to an evaluated policy on a GPU host: record, train with corrections, evaluate.

    python -m measurements ten_minutes all --work=/dev/shm/mt50
    python -m measurements ten_minutes record --work=DIR   (the others later, with the same flags)

One language-conditioned policy from pixels for all tasks (docs/guides/many_tasks.md). The stages
are `proctor` commands, printed as they run. They may run in several sessions: WORK/times.json keeps
the time of each. Demonstrations have other seeds than the final evaluation.

    record    demonstrations of the scripted experts, half of them with action noise
    rounds    one training, which is corrected while it goes on (DAgger)
    examine   evaluation on unseen seeds, and the mean of Meta-World's four groups

``rounds`` trains at a constant rate. Meanwhile its newest averaged weights act, first in
--correct_tasks, later in the --weakest tasks of a short evaluation (those that cost the mean of the
four groups most), and the experts label their states. Then the training is resumed on all datasets.
Its last steps lower the rate to 0, so that it ends after --minutes, all earlier stages included.

Other stages are not part of "all". The last two need a trained policy in WORK:

    train     instead of rounds: a training on the demonstrations alone
    choose    short evaluations with each number of --choices as actions executed per inference
              call, on seeds of its own; examine and perturb use the best. With --choices, rounds
              does this itself, beside its last steps
    perturb   the same evaluation with --perturb: clean episodes, and each dimension at 3 levels

`perturb --perturb=language` evaluates wordings that the policy was not trained with.
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
from functools import partial
from pathlib import Path

from measurements.command import PROCTOR, machine, make_parser
from measurements.running_training import RunningTraining, newest_checkpoint
from proctor.benchmarks.metaworld.tasks import TASKS
from proctor.runs.journal import read_journal
from proctor.stats.rates import rate_text
from proctor.training.checkpoints.saving import AVERAGED
from proctor.types import Outcome

EIGHT = (
    "drawer-open-v3,button-press-v3,peg-insert-side-v3,basketball-v3,assembly-v3,hand-insert-v3,"
    "stick-push-v3,disassemble-v3"
)
RECORDED_FROM, CORRECTED_FROM, EXAMINED_FROM = 200_000, 300_000, 1000
MEASURED_FROM, CHOSEN_FROM = 400_000, 600_000
ROUND = 10_000
"""Seeds between two rounds of the same stage."""
FURTHER = (
    "--policy.random_shift=6 --policy.crop=[46,60,128,128] --policy.chunk_size=10 "
    "--accelerator.compile.enabled=true --accelerator.compile.regional=false"
)
"""Crop images of 192x192 to the table with the objects of Meta-World's tasks; compile the step."""
TRAINING = "training"
CHOSEN = "chosen.json"
TINY = {
    "tasks": "reach-v3", "size": 64, "renderer": "gl", "shadow_map": 64, "workers": 2, "loaders": 0,
    "demos": 1, "corrected": 1, "corrected_steps": 10, "steps": 3, "more": 3, "batch": 2,
    "episodes": 1, "horizon": 10, "weakest": 1, "corrected_again": 1, "measured": 1,
    "choices": "5,10", "rounds": 2, "save_every": 2, "minutes": 0, "last_minutes": -60,
    "device": "cpu",
    "further": "--policy.dim_model=32 --policy.dim_feedforward=32 --policy.n_heads=2",
}  # fmt: skip
STAGES = ("record", "rounds", "examine")
TRAIN, CHOOSE, PERTURB = "train", "choose", "perturb"
ENDLESS = 999_999
"""Steps of a training before its end is decided."""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the flags."""
    parser = make_parser("ten_minutes", __doc__, ("all", *STAGES, TRAIN, CHOOSE, PERTURB))
    parser.add_argument("--tasks", default="mt50", help="eight, or what --env.task takes")
    parser.add_argument("--work", type=Path, required=True, help="folder of datasets and runs")
    parser.add_argument("--size", type=int, default=192, help="image side, pixels")
    parser.add_argument("--shadow_map", type=int, default=1024, help="pixels; GL only")
    parser.add_argument("--renderer", choices=("gl", "warp"), default="warp")
    parser.add_argument("--renderer_python", help="interpreter of renderer warp")
    parser.add_argument(
        "--expert", choices=("metaworld", "smooth"), default="smooth", help="scripted experts"
    )
    parser.add_argument("--workers", type=int, help="simulators (default: Proctor's)")
    parser.add_argument("--cache", default="device", help="what --dataset.cache takes")
    parser.add_argument(
        "--loaders", type=int, default=12, help="data loader processes, unless --cache=device"
    )
    parser.add_argument("--demos", type=int, default=20, help="demonstrations per task")
    parser.add_argument("--corrected", type=int, default=16, help="corrected episodes per task")
    parser.add_argument(
        "--expert_share", type=float, default=0.4, help="share of corrected steps the expert plays"
    )
    parser.add_argument(
        "--corrected_steps", type=int, default=200, help="maximum steps of a corrected episode"
    )
    parser.add_argument("--correct_tasks", help="tasks of the first round (default: all)")
    parser.add_argument(
        "--balance_tasks", action="store_true", help="sample every task equally often"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=5000,
        help="steps of train; round 1 begins at the first checkpoint from here on",
    )
    parser.add_argument(
        "--more", type=int, default=4000, help="steps between two rounds, or a few more"
    )
    parser.add_argument("--rounds", type=int, default=1, help="rounds of corrections at most")
    parser.add_argument(
        "--minutes", type=float, default=5.6, help="end of the stage rounds; earlier stages count"
    )
    parser.add_argument(
        "--last_minutes",
        type=float,
        default=1.5,
        help="with less time left, no further round begins",
    )
    parser.add_argument(
        "--decay_share", type=float, default=0.25, help="share of all steps that lower the rate"
    )
    parser.add_argument(
        "--start_s", type=float, default=30, help="seconds that a resumed training needs to start"
    )
    parser.add_argument(
        "--save_every", type=int, default=1500, help="steps between checkpoints of rounds"
    )
    parser.add_argument(
        "--weakest",
        type=int,
        default=20,
        help="tasks that later rounds correct; tasks without a failure fill the list",
    )
    parser.add_argument(
        "--measured", type=int, default=5, help="episodes per task of rounds and choose"
    )
    parser.add_argument(
        "--corrected_again", type=int, default=26, help="corrected episodes per task, later rounds"
    )
    parser.add_argument(
        "--paraphrases",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="several wordings of each task",
    )
    parser.add_argument(
        "--drop",
        action="store_true",
        help="remove datasets once they are merged: WORK is in memory",
    )
    parser.add_argument("--batch", type=int, default=256, help="batch size")
    parser.add_argument("--lr", type=float, default=4e-4, help="learning rate")
    parser.add_argument("--clip", type=float, default=1.0, help="maximum gradient norm of rounds")
    parser.add_argument("--warm_up", type=int, default=500, help="warm-up steps of rounds")
    parser.add_argument("--episodes", type=int, default=20, help="evaluation episodes per task")
    parser.add_argument("--every", type=int, default=3, help="actions executed per inference call")
    parser.add_argument(
        "--choices", help="values of --every that rounds and choose try (default: none)"
    )
    parser.add_argument("--perturb", default="all", help="dimensions of the stage perturb")
    parser.add_argument("--videos", type=int, default=1, help="videos per perturbed task")
    parser.add_argument("--horizon", type=int, default=500, help="maximum steps of an evaluation")
    parser.add_argument("--device", default="cuda", help="of policy and renderer")
    parser.add_argument("--further", default=FURTHER, help="further flags of the training")
    options = parser.parse_args(words)
    if options.tiny:
        vars(options).update(TINY)
    if CHOOSE in options.parts and not options.choices:
        parser.error("choose needs --choices, such as --choices=1,2,3")
    if options.tasks == "eight":
        options.tasks = EIGHT
    if not options.parts or "all" in options.parts:
        options.parts = [*STAGES, *(part for part in options.parts if part not in (*STAGES, "all"))]
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
            *([] if options.workers is None else [f"--eval.batch_size={options.workers}"]),
        ]

    def run(self, stage: str) -> None:
        """Run one stage and store its time."""
        start = time.perf_counter()
        {
            "record": self.record,
            "rounds": self.rounds,
            "examine": self.examine,
            TRAIN: self.train,
            CHOOSE: self.choose,
            PERTURB: self.perturb,
        }[stage]()
        times = self.times() | {stage: round(time.perf_counter() - start, 1)}
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
            f"--env.expert={self.options.expert}",
            *self.kept_in("demos", self.options.demos, RECORDED_FROM),
            f"--env.task={self.options.tasks}",
            "--record.noise=0.3",
            "--record.noise_share=0.5",
            "--record.noise_dims=[0,1,2]",
            "--env.episode_length=250",
        )

    def label(self, tasks: str, recording: Sequence[str]) -> None:
        """Record the policy's episodes with the experts' actions as labels."""
        self.proctor(
            "record",
            f"--policy.path={self.policy()}",
            f"--policy.n_action_steps={self.options.every}",
            "--record.label=expert",
            f"--env.expert={self.options.expert}",
            f"--record.expert_share={self.options.expert_share}",
            *recording,
            f"--env.task={tasks}",
            f"--env.episode_length={self.options.corrected_steps}",
        )

    def merge(self, *names: str, into: str) -> None:
        """Merge datasets."""
        folders = [str(self.folder / name) for name in names]
        self.proctor("data", "merge", *folders, f"--output={self.folder / into}")

    def drop(self, *names: str) -> None:
        """Remove datasets that were merged, with --drop."""
        for name in names if self.options.drop else ():
            shutil.rmtree(self.folder / name)

    def rounds(self) -> None:
        """Train once, and correct the policy while it trains."""
        minutes, earlier = self.options.minutes, sum(self.times().values())
        ends_at = time.perf_counter() + 60 * minutes - earlier
        training = RunningTraining(self.folder / TRAINING, self.options.lr)
        try:
            dataset = self.correct_in_rounds(training, ends_at)
            self.finish(training, dataset, ends_at)
        finally:
            training.kill()

    def correct_in_rounds(self, training: RunningTraining, ends_at: float) -> str:
        """Begin the training and correct it; return the name of the dataset to finish it with."""
        options, dataset = self.options, "demos"
        training.start(
            "--policy.type=language_act",
            *self.training_flags(dataset, ENDLESS, options.save_every),
            "--scheduler.type=warmup_stable_decay",
            f"--scheduler.num_warmup_steps={options.warm_up}",
            "--scheduler.num_decay_steps=0",
            f"--optimizer.grad_clip_norm={options.clip}",
            "--stop_on_divergence=true",
        )
        begun_at, wanted = 0, options.steps
        for number in range(1, options.rounds + 1):
            training.wait_for(begun_at + wanted)
            tasks = self.tasks_of_round(number)
            name, seed = f"corrections-{number}", CORRECTED_FROM + ROUND * number
            n = options.corrected if number == 1 else options.corrected_again
            self.label(tasks, self.kept_in(name, n, seed))
            dataset, before = f"all-{number}", dataset
            self.merge(before, name, into=dataset)
            training.stop()
            begun_at, wanted = training.step, options.more
            left = ends_at - time.perf_counter()
            print(f"== round {number}: step {begun_at:,}, {left:.0f} s left", flush=True)
            self.drop(before, name)
            if number == options.rounds or left < 60 * options.last_minutes:
                break
            training.resume(partial(self.dataset_flags, dataset))
        return dataset

    def dataset_flags(self, name: str) -> list[str]:
        """Return the flags that resume a training on a dataset."""
        return [f"--dataset.root={self.folder / name}"]

    def tasks_of_round(self, number: int) -> str:
        """Return the tasks to correct: first the given ones, later the weakest of all."""
        options = self.options
        if number == 1:
            return str(options.correct_tasks or options.tasks)
        run, seed = f"quick-{number}", MEASURED_FROM + ROUND * number
        self.evaluate(run, options.measured, seed, options.every, "--video.episodes=0")
        print_groups(self.folder / run)
        tasks = weakest_tasks(self.folder / run, options.weakest)
        print(f"== weakest tasks: {', '.join(tasks)}", flush=True)
        return ",".join(tasks)

    def finish(self, training: RunningTraining, dataset: str, ends_at: float) -> None:
        """Train on all datasets until the time is over, with a falling rate at the end.

        If the time is too short for that share of the steps, the training ends later.

        With --choices, the newest weights meanwhile show how many actions to execute per inference
        call.
        """

        def flags() -> list[str]:  # a divergence costs time, so there are fewer steps after it
            share, seconds = self.options.decay_share, ends_at - time.perf_counter()
            in_time = round((seconds - self.options.start_s) * training.steps_per_s())
            least = max(1, round(share / (1 - share) * training.step))
            if in_time < least:
                print(f"== ends after --minutes: {least:,} steps lower the rate", flush=True)
            further = max(in_time, least)
            steps = training.step + further
            decay = min(further, round(share * steps))
            return [
                *self.dataset_flags(dataset),
                f"--steps={steps}",
                f"--scheduler.num_decay_steps={decay}",
            ]

        training.resume(flags)
        if self.options.choices:
            self.choose()
        training.wait()

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
        """Train on the demonstrations alone."""
        steps = self.options.steps
        self.proctor(
            "train",
            "--policy.type=language_act",
            *self.training_flags("demos", steps, max(1, steps // 5)),
            f"--optimizer.lr={self.options.lr}",
            f"--output_dir={self.folder / TRAINING}",
        )

    def training_flags(self, dataset: str, steps: int, save_every: int) -> list[str]:
        """Return the flags that both kinds of training share."""
        options = self.options
        return [
            f"--policy.device={options.device}",
            f"--dataset.root={self.folder / dataset}",
            f"--dataset.balance_tasks={str(options.balance_tasks).lower()}",
            f"--dataset.paraphrase_tasks={str(options.paraphrases).lower()}",
            f"--dataset.cache={options.cache}",
            "--dataset.cache_gb=80",
            f"--batch_size={options.batch}",
            f"--steps={steps}",
            f"--save_freq={save_every}",
            f"--log_freq={max(1, save_every // 3)}",
            *([] if options.cache == "device" else [f"--num_workers={options.loaders}"]),
            "--ema.enable=true",
            *(["--accelerator.mixed_precision=bf16"] if options.device == "cuda" else []),
            *shlex.split(options.further),
        ]

    def policy(self) -> Path:
        """Return the path of the training's averaged weights, of the newest checkpoint."""
        newest = newest_checkpoint(self.folder / TRAINING)
        if newest is None:
            raise SystemExit(f"{self.folder / TRAINING} has no checkpoint")
        return newest / AVERAGED

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
            f"--policy.path={self.policy()}",
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
