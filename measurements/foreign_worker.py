"""Episodes and steps per second of simulators in another interpreter, against ordinary workers.

    python -m measurements foreign_worker --python=PATH [...] [--workers=1,2] [--case=TEXT]
        [--rounds=N]

Each PATH is an interpreter, or a virtual environment, with numpy and gymnasium; Meta-World is
measured in those that have it. Ordinary and foreign runs alternate, so that the load of the machine
falls on both; the ratio is the median over the rounds. "fastest" is the ratio if every episode
counts with its fastest round, which other processes disturb less. Steps per second are those of
one worker, while as many run side by side as ``--workers`` says. The first line has the time of
CartPole without Proctor, in this interpreter and in the other one: Pythons differ in speed. A step
of "1 ms CartPole" takes the same time in all.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path

from measurements.command import evaluate, make_parser, run_parts
from proctor.benchmarks.isolated.launch import interpreter_path
from proctor.runs.journal import EpisodeRecord

_CARTPOLE = ("--env.type=gym", "--env.id=CartPole-v1", "--env.success=truncated")
_SLOW = (
    "--env.type=gym",
    "--env.id=measurements.millisecond_cartpole:MillisecondCartPole-v0",
    "--env.success=truncated",
)
_REACH = ("--env.type=metaworld", "--env.task=reach-v3")
_SMALL = (
    "--env.observation_height=64",
    "--env.observation_width=64",
    "--policy.inputs=[observation.image]",
)
_RANDOM = ("--policy.type=random",)
_CHUNKS = (*_RANDOM, "--policy.n_action_steps=10")
CASES = {
    "CartPole, a round trip each step": (*_CARTPOLE, *_RANDOM),
    "CartPole, chunks of 10": (*_CARTPOLE, *_CHUNKS),
    "1 ms CartPole, a round trip each step": (*_SLOW, *_RANDOM),
    "1 ms CartPole, chunks of 10": (*_SLOW, *_CHUNKS),
    "Meta-World, expert": (*_REACH, "--policy.type=expert"),
    "Meta-World, chunks of 10": (*_REACH, *_CHUNKS, "--env.episode_length=100"),
    "Meta-World, chunks of 10, images 64x64": (
        *_REACH,
        *_CHUNKS,
        *_SMALL,
        "--env.episode_length=100",
    ),
}


_ALONE = """
import time
import gymnasium, numpy
env, fastest, steps = gymnasium.make("CartPole-v1"), {}, {}
for _ in range(20):
    for seed in range(50):
        actions = numpy.random.RandomState(seed).randint(0, 2, 500)
        start, number, over = time.perf_counter(), 0, False
        env.reset(seed=seed)
        while not over:
            _, _, terminated, truncated, _ = env.step(actions[number])
            number, over = number + 1, terminated or truncated
        spent = time.perf_counter() - start
        fastest[seed], steps[seed] = min(spent, fastest.get(seed, spent)), number
print(1e6 * sum(fastest.values()) / sum(steps.values()))
"""


def cartpole_us(python: str) -> float:
    """Return microseconds per step of CartPole alone, with its resets, in an interpreter."""
    words = [str(interpreter_path(python)), "-c", _ALONE]
    done = subprocess.run(words, capture_output=True, text=True, check=True)  # noqa: S603  the user's own
    return float(done.stdout)


def steps_per_s(rows: Sequence[EpisodeRecord]) -> float:
    """Return steps per second of the workers' own time, without start-up."""
    spent = sum(row.end_time - row.start_time for row in rows)
    return sum(row.steps or 0 for row in rows) / spent


def has_module(python: str, module: str) -> bool:
    """Return whether an interpreter can import a module."""
    words = [str(interpreter_path(python)), "-c", f"import {module}"]
    return subprocess.run(words, capture_output=True).returncode == 0  # noqa: S603  the user's own


def measure(folder: Path, python: str, workers: int, case: str, rounds: int, *, tiny: bool) -> None:
    """Run the cases with ``case`` in their name, here and in ``python`` in turns; print rows."""
    print(
        f"{python}, {workers} worker{'s' * (workers > 1)}, CartPole alone "
        f"{cartpole_us(sys.executable):.1f} -> {cartpole_us(python):.1f} us/step"
    )
    for name, flags in CASES.items():
        if case not in name:
            continue
        if "Meta-World" in name and not has_module(python, "metaworld"):
            continue
        episodes = 2 if tiny else 200 if name.startswith("CartPole") else 50  # short ones
        ratios, different, speeds = [], 0, []
        fastest: dict[str, dict[Hashable, float]] = {"here": {}, "there": {}}
        for number in range(rounds):
            run = folder / f"{abs(hash((python, name)))}-{number}"
            common = (*flags, f"--eval.n_episodes={episodes}", f"--eval.batch_size={workers}")
            places = {"here": (), "there": (f"--env.python={python}",)}
            order = list(places)[:: 1 if number % 2 == 0 else -1]  # each comes first in turn
            runs = {at: evaluate(run.with_suffix(f".{at}"), *common, *places[at]) for at in order}
            here, there = runs["here"][1], runs["there"][1]
            digests = {row.key: row.digest for row in here}
            different += sum(digests[row.key] != row.digest for row in there)
            speeds.append((steps_per_s(here), steps_per_s(there)))
            ratios.append(speeds[-1][1] / speeds[-1][0])
            for at, (_, rows) in runs.items():
                for row in rows:
                    spent = row.end_time - row.start_time
                    fastest[at][row.key] = min(spent, fastest[at].get(row.key, spent))
        best = sum(fastest["here"].values()) / sum(fastest["there"].values())
        here_s, there_s = (statistics.median(column) for column in zip(*speeds, strict=True))
        print(
            f"  {name:<40} {different} of {rounds * episodes} different  "
            f"{here_s:8.0f} -> {there_s:8.0f} steps/s  ratio {statistics.median(ratios):.2f}  "
            f"fastest {best:.2f}",
            flush=True,
        )


def main(words: Sequence[str]) -> None:
    """Measure every interpreter that is given."""
    parser = make_parser("foreign_worker", __doc__)
    parser.add_argument("--python", action="append", default=[], metavar="PATH")
    parser.add_argument("--workers", default="1,2", metavar="N,...", help="workers side by side")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each kind")
    parser.add_argument("--case", default="", metavar="TEXT", help="only cases with this in them")
    arguments = parser.parse_args(words)
    if not arguments.python:
        parser.error("give an interpreter: --python=PATH")

    def all_of_them(folder: Path) -> None:
        for number, python in enumerate(arguments.python):
            for workers in map(int, arguments.workers.split(",")):
                place = folder / f"{number}-{workers}"
                rounds = 1 if arguments.tiny else arguments.rounds
                measure(place, python, workers, arguments.case, rounds, tiny=arguments.tiny)

    run_parts((), {"interpreters": all_of_them})
