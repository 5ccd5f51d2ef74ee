"""Let the file operations of every command fail: python -m tests.chaos.files --runs=500 --seed=0

Each trial lets one operation of a command fail (or kills the command before it), then completes
the command. Nothing finished may be lost, nothing may be left, and an error is one line.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.chaos.files.cases import CASES
from tests.chaos.files.injection import FAULTS, Fault, compile_injector, why_impossible
from tests.chaos.files.sweep import PAIRS, Trial, sweeping


def shares(runs: int, pairs: list[tuple[str, Fault]]) -> dict[tuple[str, str], int]:
    """Divide the trials among commands and faults."""
    each, more = divmod(runs, len(pairs))
    return {(name, fault.name): each + (place < more) for place, (name, fault) in enumerate(pairs)}


def sweep_command(
    name: str, counts: dict[tuple[str, str], int], seed: int, base: Path, library: Path
) -> list[Trial]:
    """Run the trials of a command and print what is wrong with them."""
    trials = []
    began = time.monotonic()
    with sweeping(name, base, library) as sweep:
        for fault in FAULTS:
            count = counts.get((name, fault.name), 0)
            for point in sweep.points(fault, seed)[:count] if count else ():
                trial = sweep.run_trial(fault, point.number)
                if trial is None:
                    continue
                trials.append(trial)
                if not trial.sound:
                    print(trial, flush=True)
    seconds = time.monotonic() - began
    print(f"{table(trials).splitlines()[2]} {seconds:.0f} s", file=sys.stderr, flush=True)
    return trials


def table(trials: list[Trial]) -> str:
    """Return a row for each command with a cell for each fault: tried/one line/lost/left over."""
    lines = [f"| command | {' | '.join(fault.name for fault in FAULTS)} |"]
    lines.append("|---" * (len(FAULTS) + 1) + "|")
    for name in [*(name for name in CASES if any(one.name == name for one in trials)), "all"]:
        cells = []
        for fault in FAULTS:
            found = [one for one in trials if one.fault is fault and name in (one.name, "all")]
            counts = (
                len(found),
                sum(one.is_one_line for one in found),
                sum(bool(one.lost) for one in found),
                sum(bool(one.left) for one in found),
            )
            cells.append(" / ".join(str(count) for count in counts))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the trials, print the table, and return 1 if any trial failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.files")
    parser.add_argument("--runs", type=int, default=300, help="how many operations fail")
    parser.add_argument("--seed", type=int, default=0, help="decides which")
    parser.add_argument("--only", choices=[*CASES], action="append", help="a command")
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--fault", choices=names, action="append", help="a fault")
    parser.add_argument("--lanes", type=int, default=2, help="how many commands at once")
    given = parser.parse_args()
    reason = why_impossible()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    wanted = given.only or [*CASES]
    faults = given.fault or names
    pairs = [pair for pair in PAIRS if pair[0] in wanted and pair[1].name in faults]
    counts = shares(given.runs, pairs)
    base = Path(tempfile.mkdtemp(prefix="proctor-files-"))
    library = compile_injector(base)

    def one(name: str) -> list[Trial]:
        return sweep_command(name, counts, given.seed, base, library)

    with ThreadPoolExecutor(given.lanes) as pool:
        trials = [trial for trials in pool.map(one, wanted) for trial in trials]
    print(table(trials))
    wrong = sum(bool(trial.other) for trial in trials)
    print(
        f"\n{len(trials)} trials, seed {given.seed}; {wrong} hung, or printed other than one line"
    )
    shutil.rmtree(base)
    return 0 if all(trial.sound for trial in trials) else 1


if __name__ == "__main__":
    sys.exit(main())
