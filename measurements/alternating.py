"""CPU time of one command in two checkouts, by turns.

    python -m measurements alternating BEFORE AFTER [--units=SMALL,LARGE] [--rounds=30] -- COMMAND

BEFORE and AFTER are checkouts with a `.venv`, or interpreters. The words `{python}`, `{side}`
("before" or "after"), `{out}` (a new path) and `{n}` (a number of `--units`) of the command are
replaced. A figure is user plus system time of the command and all its descendants, which must end
with it. Both sides run in every round, each first in every other round. The first round does not
count. With two sizes of `--units`, the smaller one shows the start-up, and the difference is the
cost per unit without it: episodes, requests, frames. A ratio is the geometric mean over the rounds,
with a 95% interval by a bootstrap over rounds. Other load changes CPU times, though less than wall
times: rounds make it fall on both sides. For example:

    python -m measurements alternating ../old . --units=2,102 -- {python} -m proctor.cli eval \\
        --env.type=fake --policy.type=random --eval.n_episodes={n} --output_dir={out}
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from measurements.command import machine, make_parser

SIDES = ("before", "after")
RESAMPLES = 10_000
END_S = 30.0
"""How long descendants may outlive their command."""
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

Seconds = dict[str, list[float]]
"""CPU seconds by side, one figure a round."""


@dataclass(frozen=True)
class Ratio:
    """After / before: geometric mean over the rounds, and its 95% interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio(seconds: Mapping[str, Sequence[float]]) -> Ratio:
    """Return the ratio of CPU seconds; rounds are resampled with a fixed seed.

    Raises:
        SystemExit: a difference of two sizes is not positive.
    """
    before, after = (np.asarray(seconds[side]) for side in SIDES)
    if min(before.min(), after.min()) <= 0:
        raise SystemExit("a larger command took no more CPU time: choose sizes further apart")
    logs = np.log(after / before)
    picks = np.random.default_rng(0).integers(0, len(logs), (RESAMPLES, len(logs)))
    low, high = np.quantile(logs[picks].mean(1), [0.025, 0.975])
    return Ratio(*(float(np.exp(value)) for value in (logs.mean(), low, high)))


def cpu_seconds(command: Sequence[str], folder: Path) -> float:
    """Run a command in ``folder``; return the CPU time of it and of all its descendants.

    This process adopts descendants whose parents end before them, and must have no other children.

    Raises:
        SystemExit: the command failed (with the end of its output), or left processes behind.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603  the user's own command
            command, stdout=output, stderr=output, cwd=folder, env=environment
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            text = output.read().decode(errors="replace")[-3000:]
            raise SystemExit(f"{' '.join(command)}\nexited with {process.returncode}:\n{text}")
    adopted_s = sum(_adopted(time.monotonic() + END_S, command))
    return used.ru_utime + used.ru_stime + adopted_s


def _adopted(until: float, command: Sequence[str]) -> Iterator[float]:
    """Wait for the remaining descendants of a command; yield their CPU seconds."""
    while True:
        try:
            pid, _, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            yield used.ru_utime + used.ru_stime
        elif time.monotonic() > until:
            raise SystemExit(f"{' '.join(command)}\nleft processes that run on after {END_S:.0f} s")
        else:
            time.sleep(0.01)


def _adopt_descendants() -> None:
    """Make orphaned descendants children of this process (Linux), so that their time counts."""
    if sys.platform == "linux":
        failed = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if failed:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _interpreter(text: str) -> str:
    """Return the interpreter of a checkout, or the given one."""
    path = Path(text).absolute()  # not resolved: a link in a virtual environment is its own
    path = path / ".venv" / "bin" / "python" if path.is_dir() else path
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no interpreter at {path}")
    return str(path)


def _sizes(text: str) -> list[int]:
    """Return one or two increasing numbers of units."""
    sizes = [int(word) for word in text.split(",")]
    if len(sizes) > 2 or sizes != sorted(set(sizes)):
        raise argparse.ArgumentTypeError(f"{text!r}: give one number, or two like 2,102")
    return sizes


def _filled(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Replace the known names in braces; other braces stay."""
    words = list(command)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    return words


def measure(
    pythons: Mapping[str, str], command: Sequence[str], sizes: Sequence[int], rounds: int
) -> dict[int, Seconds]:
    """Return the CPU seconds of every size and side; a first round is run and left out."""
    table: dict[int, Seconds] = {n: {side: [] for side in SIDES} for n in sizes}
    for number in range(rounds + 1):
        for n in sizes:
            for side in SIDES[:: 1 if number % 2 else -1]:
                with tempfile.TemporaryDirectory() as folder:
                    values = {"python": pythons[side], "side": side, "n": str(n)}
                    words = _filled(command, {**values, "out": str(Path(folder, "out"))})
                    spent = cpu_seconds(words, Path(folder))
                if number:
                    table[n][side].append(spent)
    return table


def _row(name: str, seconds: Mapping[str, Sequence[float]], units: int = 1) -> str:
    before, after = (f"{np.mean(seconds[side]) / units:.4g}" for side in SIDES)
    return f"| {name} | {before} | {after} | {ratio(seconds)} |"


def main(words: Sequence[str]) -> None:
    """Measure one command in two checkouts."""
    parser = make_parser("alternating", __doc__)
    parser.add_argument("before", type=_interpreter, metavar="BEFORE")
    parser.add_argument("after", type=_interpreter, metavar="AFTER")
    parser.add_argument("--units", type=_sizes, default=[1], metavar="SMALL,LARGE")
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="default: 30")
    mark = list(words).index("--") if "--" in words else len(words)
    args, command = parser.parse_args(words[:mark]), list(words[mark + 1 :])
    if not command:
        parser.error("give the command after --")
    _adopt_descendants()
    rounds = 2 if args.tiny else args.rounds
    print(f"{machine()}\n`{' '.join(command)}`, {rounds} rounds, load {os.getloadavg()[0]:.2f}\n")
    table = measure({"before": args.before, "after": args.after}, command, args.units, rounds)
    print("| CPU seconds | before | after | after / before |\n|---|---|---|---|")
    for n, seconds in table.items():
        print(_row(f"command, n={n}", seconds))
    if len(args.units) == 2:
        small, large = (table[n] for n in args.units)
        more = {side: np.subtract(large[side], small[side]).tolist() for side in SIDES}
        print(_row("one unit", more, args.units[1] - args.units[0]))
    print(f"\nload after: {os.getloadavg()[0]:.2f}")
