"""The command that is measured, and what its figures must be read with. Imports no other script."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from proctor.machine.system import git_commit, usable_cores
from proctor.runs.journal import EpisodeRow, read_journal

PROCTOR = [sys.executable, "-m", "proctor.cli"]


def pss_mb(pid: int) -> float:
    """Return what a process adds to the memory in use, shared pages by its share; 0 if it ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) / 1024 if found else 0.0


def evaluate(folder: Path, *flags: str) -> tuple[float, list[EpisodeRow]]:
    """Run ``proctor eval`` as a user would; return its wall time and its episodes."""
    start = time.perf_counter()
    done = subprocess.run(  # noqa: S603  our own words
        [*PROCTOR, "eval", *flags, "--video.episodes=0", f"--output_dir={folder}"],
        capture_output=True,
        text=True,
    )
    wall_s = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(done.stderr)
    return wall_s, read_journal(folder).rows


def total(rows: list[EpisodeRow], field: str) -> float:
    return float(sum(getattr(row, field) or 0 for row in rows))


def say(name: str, figure: str, target: str = "") -> None:
    print(f"{name:<58} {figure:>16}   {target}", flush=True)


def machine() -> str:
    """Return what a figure must be read with: commit, cores, platform, Python."""
    return json.dumps(
        {
            "commit": git_commit(),
            "cores": usable_cores(),
            "platform": platform.platform(),
            "python": platform.python_version(),
        }
    )
