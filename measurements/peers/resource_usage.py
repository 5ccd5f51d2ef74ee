"""Run one command and measure its time and the memory of all its processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from measurements.command import pss_mb

SAMPLE_EVERY_S = 0.3


@dataclass(frozen=True)
class Usage:
    """Time and memory of a command."""

    started_at: float
    wall_s: float
    peak_mb: float
    """Peak memory of all its processes; a page shared by n of them counts 1/n for each."""


def measure(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Usage:
    """Run ``command`` to its end, with its output in ``log``.

    Raises:
        SystemExit: it failed; with the end of its log.
    """
    with log.open("w") as output:
        started_at, start = time.time(), time.perf_counter()
        process = psutil.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        peak_mb = 0.0
        while process.poll() is None:
            peak_mb = max(peak_mb, _tree_mb(process))
            try:
                process.wait(SAMPLE_EVERY_S)
            except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
                continue
        wall_s = time.perf_counter() - start
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nfailed:\n{log.read_text()[-3000:]}")
    return Usage(started_at, wall_s, peak_mb)


def _tree_mb(process: psutil.Process) -> float:
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(pss_mb(member.pid) for member in family)
