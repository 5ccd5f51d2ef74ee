"""``python -m tests.fuzz``: runs many hostile cases of every kind and prints a table of results."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.fuzz.campaign import Part, Tally, run_part
from tests.fuzz.kinds import KINDS

_PARTS_EACH = 8
"""Number of parts that a process runs."""
_PART = 1000
"""Cases per sandbox, which takes a second or two to set up."""


def parts_of(cases: int, seed: int, only: str | None = None) -> list[Part]:
    """Divide ``cases`` among the kinds by their shares, at least one for each, rounded up."""
    chosen = [(n, kind) for n, kind in enumerate(KINDS) if only in (None, kind.name)]
    total = sum(kind.share for _, kind in chosen)
    parts = []
    for place, kind in chosen:
        wanted = -(-cases * kind.share // total)
        for start in range(0, wanted, _PART):
            parts.append(Part(place, min(_PART, wanted - start), seed * 1_000_000 + start))
    return sorted(parts, key=lambda part: part.seed)  # some of every kind, then more


def main() -> int:
    """Run all parts and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="other seeds give other cases")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kind", help="all cases of this kind only, such as 'adapters'")
    given = parser.parse_args()
    parts = parts_of(given.cases, given.seed, given.kind)
    if not parts:
        parser.error(f"no kind {given.kind!r}; there are {', '.join(k.name for k in KINDS)}")
    tallies = [Tally() for _ in KINDS]
    began = time.monotonic()
    for part, tally in _tallied(parts, given.jobs):
        tallies[part.kind].cases += tally.cases
        tallies[part.kind].cpu_s += tally.cpu_s
        tallies[part.kind].findings |= tally.findings
        tallies[part.kind].worst.note(tally.worst)
        done = sum(tally.cases for tally in tallies)
        print(
            f"{done:,} of {given.cases:,} cases: {tally.cases:,} of {KINDS[part.kind].name}, "
            f"{tally.cpu_s:.0f} s of CPU, {len(tally.findings)} failures",
            file=sys.stderr,
            flush=True,
        )
        for text in tally.findings.values():
            print(text, file=sys.stderr, flush=True)
    return _report(tallies, time.monotonic() - began)


def _tallied(parts: list[Part], jobs: int) -> Iterator[tuple[Part, Tally]]:
    """Run ``parts`` in parallel, and restart processes now and then, since Hypothesis keeps memory.

    (A pool can replace its own after some tasks, but Python 3.11's then waits for ever at times.)
    """
    context = multiprocessing.get_context("spawn")
    for start in range(0, len(parts), jobs * _PARTS_EACH):
        some = parts[start : start + jobs * _PARTS_EACH]
        with ProcessPoolExecutor(jobs, context) as pool:
            futures = {pool.submit(run_part, part): part for part in some}
            for future in as_completed(futures):
                yield futures[future], future.result()


def _report(tallies: list[Tally], seconds: float) -> int:
    """Print the table, then every finding; return the exit code."""
    print(f"{'kind':<26} {'cases':>8} {'CPU s':>7} {'failures':>9}")
    asked = [(kind, tally) for kind, tally in zip(KINDS, tallies, strict=True) if tally.cases]
    for kind, tally in asked:
        worst = tally.worst
        most = f"   at most {worst.cpu_s * 1e3:.0f} ms, {worst.memory / 2**20:.0f} MiB"
        row = f"{kind.name:<26} {tally.cases:>8,} {tally.cpu_s:>7.0f} {len(tally.findings):>9}"
        print(row + most * (worst.cpu_s > 0))
    failures = sum(len(tally.findings) for tally in tallies)
    cases, cpu_s = sum(tally.cases for tally in tallies), sum(tally.cpu_s for tally in tallies)
    print(f"{'all':<26} {cases:>8,} {cpu_s:>7.0f} {failures:>9}   in {seconds:.0f} s")
    for kind, tally in asked:
        for text in tally.findings.values():
            print(f"\n--- {kind.name}: {text}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
