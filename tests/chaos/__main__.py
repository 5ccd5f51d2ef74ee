"""Chaos tests: hundreds of short runs, each disturbed, resumed and compared.

python -m tests.chaos --runs=300 --seed=0     # make chaos python -m tests.chaos --seed=0 --only=17
# repeat one of them
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.chaos.leftovers import can_have_own_shared_memory
from tests.chaos.scenario import KINDS, make_scenario
from tests.chaos.trial import Verdict, run_trial, undisturbed

_COLUMNS = ("runs", "hit", "sessions", "lost", "duplicated", "changed", "left behind", "other")


def main() -> int:
    """Run the trials, print the table, and return 1 if any trial failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--runs", type=int, default=300, help="how many runs are disturbed")
    parser.add_argument("--seed", type=int, default=0, help="decides what happens and when")
    parser.add_argument("--only", type=int, help="the number of the one run to do again")
    parser.add_argument("--lanes", type=int, default=2, help="how many runs at once")
    given = parser.parse_args()
    numbers = range(given.runs) if given.only is None else [given.only]
    base = Path(tempfile.mkdtemp(prefix="proctor-chaos-"))
    started = time.monotonic()
    verdicts = run_trials(given.seed, numbers, base, lanes=given.lanes)
    print(table(verdicts))
    print(f"\nseed {given.seed}, {time.monotonic() - started:.0f} s")
    if not can_have_own_shared_memory():
        print("unshare is not allowed here: /dev/shm was not looked at")
    broken = [verdict for verdict in verdicts if not verdict.sound]
    for verdict in broken:
        print(describe(verdict))
    if broken:
        print(f"what is left of these runs is in {base}")
        return 1
    shutil.rmtree(base)
    return 0


def run_trials(seed: int, numbers: Iterable[int], base: Path, *, lanes: int) -> list[Verdict]:
    """Run the trials with these numbers in ``base``, ``lanes`` of them in parallel."""
    expected = undisturbed(base)

    def one(number: int) -> Verdict:
        home = base / f"trial{number}"
        verdict = run_trial(make_scenario(seed, number, home), home, expected)
        print("." if verdict.sound else "F", end="", file=sys.stderr, flush=True)
        return verdict

    with ThreadPoolExecutor(lanes) as pool:
        verdicts = list(pool.map(one, numbers))
    print(file=sys.stderr)
    return verdicts


def table(verdicts: list[Verdict]) -> str:
    """Return a row for each kind of fault, and their sum."""
    rows = []
    for kind in KINDS:
        of_kind = [verdict for verdict in verdicts if verdict.scenario.kind is kind]
        if of_kind:
            rows.append((kind.name, _figures(of_kind)))
    rows.append(("all", _figures(verdicts)))
    width = max(len(name) for name, _ in rows)
    lines = [" " * width + "".join(f"  {column:>5}" for column in _COLUMNS)]
    for name, figures in rows:
        cells = (f"  {figures[column]:>{max(5, len(column))}}" for column in _COLUMNS)
        lines.append(f"{name:<{width}}" + "".join(cells))
    return "\n".join(lines)


def _figures(verdicts: list[Verdict]) -> dict[str, int]:
    counted = (
        len(verdicts),
        sum(verdict.landed for verdict in verdicts),
        sum(verdict.sessions for verdict in verdicts),
        sum(verdict.lost for verdict in verdicts),
        sum(verdict.duplicated for verdict in verdicts),
        sum(verdict.changed for verdict in verdicts),
        sum(len(verdict.left) for verdict in verdicts),
        sum(len(verdict.complaints) for verdict in verdicts),
    )
    return dict(zip(_COLUMNS, counted, strict=True))


def describe(verdict: Verdict) -> str:
    """Return the faults of a run and the command that repeats it."""
    counted = f"{verdict.lost} lost, {verdict.duplicated} duplicated, {verdict.changed} changed"
    wrong = "; ".join([counted, *verdict.left, *verdict.complaints])
    scenario = verdict.scenario
    return f"{scenario.kind.name}, {scenario.mode.value}: {wrong}\n  {scenario.replay}"


if __name__ == "__main__":
    sys.exit(main())
