"""The default number of simulators against fixed numbers, in one run on this machine.

    python measurements/workers.py [--cases=expert,act-cpu,act-gpu] [--numbers=1,2,4] [--repeats=2]
        [--quick] [--json=FILE]

Whole commands are timed, start-up included, all numbers in turn and that `repeats` times; a
number's time is its best. The default is what `--eval.batch_size=0` takes here, timed like any
other number: default / best is how much longer it takes than the best number tried. act-gpu needs
CUDA.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from command import evaluate, machine

from proctor.machine.system import usable_cores
from proctor.runs.journal import EpisodeRow

ACT = (
    "--policy.type=act", "--policy.chunk_size=20", "--policy.n_action_steps=20",
    "--env.type=metaworld",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A kind of run, whole and quick."""

    name: str
    flags: tuple[str, ...]
    sizes: tuple[tuple[str, ...], tuple[str, ...]]

    def words(self, *, quick: bool) -> tuple[str, ...]:
        """Return the flags of ``proctor eval``."""
        return (*self.flags, *self.sizes[quick])


CASES = {
    case.name: case
    for case in (
        Case(
            "expert",
            ("--policy.type=expert", "--env.type=metaworld", "--env.task=mt50"),
            (("--eval.n_episodes=10",), ("--eval.n_episodes=2",)),
        ),
        Case(
            "act-cpu",
            (
                *ACT,
                "--policy.device=cpu",
                "--env.task=reach-v3,push-v3",
                "--env.episode_length=100",
            ),
            (("--eval.n_episodes=24",), ("--eval.n_episodes=4",)),
        ),
        Case(
            "act-gpu",
            (*ACT, "--policy.device=cuda", "--env.task=mt50"),
            (("--eval.n_episodes=4",), ("--eval.n_episodes=2", "--env.episode_length=200")),
        ),
    )
}


@dataclass
class Measured:
    """How long a case took with each number of simulators."""

    case: str
    default: int
    seconds: dict[int, list[float]] = field(default_factory=dict)

    @property
    def best(self) -> int:
        """The number that took least."""
        return min(self.seconds, key=lambda number: min(self.seconds[number]))

    @property
    def ratio(self) -> float:
        """How much longer the default takes than the best."""
        return min(self.seconds[self.default]) / min(self.seconds[self.best])

    def lines(self) -> Iterator[str]:
        """Yield the table."""
        for number, seconds in sorted(self.seconds.items()):
            mark = " default" * (number == self.default) + " best" * (number == self.best)
            runs = ", ".join(f"{s:.1f}" for s in seconds)
            yield f"{self.case:<10} {number:>4}  {min(seconds):8.1f} s  ({runs}){mark}"
        yield f"{self.case:<10} default / best: {self.ratio:.3f}"


def measure(case: Case, numbers: list[int], repeats: int, *, quick: bool) -> Measured:
    """Time ``case`` with the default and with each of ``numbers``, in turn."""
    words = case.words(quick=quick)
    wall_s, rows = _timed(words, 0)
    measured = Measured(case.name, _at_once(rows), {})
    measured.seconds[measured.default] = [wall_s]
    for turn in range(repeats):
        for number in sorted({*numbers, measured.default}):
            if turn == 0 and number == measured.default:
                continue  # that was the first of all
            measured.seconds.setdefault(number, []).append(_timed(words, number)[0])
    return measured


def _timed(words: tuple[str, ...], number: int) -> tuple[float, list[EpisodeRow]]:
    with tempfile.TemporaryDirectory() as folder:
        return evaluate(Path(folder) / "run", *words, f"--eval.batch_size={number}")


def _at_once(rows: list[EpisodeRow]) -> int:
    """Return how many simulators the run had."""
    return len({row.worker for row in rows})


def fixed_numbers(cores: int) -> list[int]:
    """Return the numbers worth trying on so many cores."""
    if cores <= 4:
        return list(range(1, 2 * cores + 1))
    shares = (0.5, 0.7, 0.875, 1, 1.25, 1.5)
    return sorted({round(share * cores) for share in shares})


def has_cuda() -> bool:
    """Return whether a network can run on a GPU here."""
    import torch

    return bool(torch.cuda.is_available())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--numbers", default="", help="as 1,2,4; default: by the cores")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="fewer episodes")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    print(machine(), flush=True)
    numbers = [int(number) for number in options.numbers.split(",") if number]
    results = []
    for name in options.cases.split(","):
        if name == "act-gpu" and not has_cuda():
            print("act-gpu    left out: no CUDA here")
            continue
        case = CASES[name]
        tried = numbers or fixed_numbers(usable_cores())
        measured = measure(case, tried, options.repeats, quick=options.quick)
        print(*measured.lines(), sep="\n", flush=True)
        results.append(asdict(measured) | {"best": measured.best, "ratio": measured.ratio})
    if options.json is not None:
        document = {"machine": json.loads(machine()), "quick": options.quick, "cases": results}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
