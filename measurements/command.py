"""Shared by all measurements: running ``proctor``, command-line flags, printing figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from proctor.runs.journal import EpisodeRecord, read_journal
from proctor.system.platform.platform_info import git_commit, usable_cores

PROCTOR = [sys.executable, "-m", "proctor.cli"]
Part = Callable[[Path], None]
"""Measures one thing in a scratch folder and prints its figures."""


def make_parser(name: str, doc: str | None, parts: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of a measurement, with the names of its parts and ``--tiny``."""
    parser = argparse.ArgumentParser(
        prog=f"python -m measurements {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if parts:

        def part(word: str) -> str:
            if word not in parts:
                raise argparse.ArgumentTypeError(f"no {word!r} (choose from: {', '.join(parts)})")
            return word

        parser.add_argument("parts", nargs="*", type=part, metavar="PART", help=", ".join(parts))
    parser.add_argument(
        "--tiny", action="store_true", help="the smallest run: tests the script, not the speed"
    )
    return parser


def run_parts(names: Sequence[str], parts: Mapping[str, Part], head: str = "") -> None:
    """Run the named parts, or all, in a scratch folder; print the machine and its load."""
    print(machine())
    print(f"load before: {os.getloadavg()[0]:.2f}")
    if head:
        print(f"\n{head}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names or parts:
            parts[name](Path(folder))
    print(f"{chr(10) * bool(head)}load after: {os.getloadavg()[0]:.2f}")


def proctor(*words: str) -> None:
    """Run a ``proctor`` command to its end.

    Raises:
        SystemExit: the command failed; with its error output.
    """
    done = subprocess.run([*PROCTOR, *words], capture_output=True, text=True)  # noqa: S603  our own command
    if done.returncode:
        raise SystemExit(done.stderr)


def evaluate(folder: Path, *flags: str) -> tuple[float, list[EpisodeRecord]]:
    """Run ``proctor eval`` as a user would; return its wall time and its episodes."""
    start = time.perf_counter()
    proctor("eval", *flags, "--video.episodes=0", f"--output_dir={folder}")
    return time.perf_counter() - start, read_journal(folder).rows


def total(rows: Sequence[EpisodeRecord], field: str) -> float:
    """Return the sum of one field; missing values count as 0."""
    return float(sum(getattr(row, field) or 0 for row in rows))


def say(name: str, figure: str, target: str = "") -> None:
    """Print one figure, and its target if there is one."""
    print(f"{name:<58} {figure:>16}   {target}", flush=True)


def pss_mb(pid: int) -> float:
    """Return the proportional set size of a process; 0 if it ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) / 1024 if found else 0.0


def machine(**more: object) -> str:
    """Return commit, cores, platform and Python version, which belong to every figure."""
    return json.dumps(
        {
            "commit": git_commit(),
            "cores": usable_cores(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            **more,
        }
    )
