"""Run a proctor command and measure its wall time, CPU time and memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from measurements.command import PROCTOR, pss_mb
from proctor.runs.journal import EpisodeRecord, read_journal

_EVERY_S, _WORKERS_EVERY_S = 0.01, 0.2


@dataclass
class CommandUsage:
    """Resources that a command used. CPU time and peak memory exclude its workers."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    began: float
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Time and memory of the parent (MB)."""
    worker_mb: float | None = None
    """Largest proportional set size of any worker; None if none was seen."""
    worker_cpu_s: dict[int, float] = field(default_factory=dict)
    """CPU time of each worker when it was last seen."""

    @property
    def all_cpu_s(self) -> float:
        """CPU time of the parent and its workers, until the last sample."""
        return self.cpu_s + sum(self.worker_cpu_s.values())

    def running_mb(self, rows: Sequence[EpisodeRecord]) -> float | None:
        """Return the parent's largest memory while episodes ended; None without samples."""
        begin, end = min(row.start_time for row in rows), max(row.end_time for row in rows)
        seen = [mb for moment, mb in self.samples if begin <= moment <= end]
        return max(seen, default=None)


def run_monitored(*words: str) -> CommandUsage:
    """Run ``proctor WORDS`` to its end.

    Raises:
        SystemExit: the command failed; with its output.
    """
    usage, start, next_sample = CommandUsage(0.0, 0.0, 0.0, time.time()), time.perf_counter(), 0.0
    with tempfile.TemporaryFile("w+") as output:  # a pipe would fill up: it is not read meanwhile
        process = subprocess.Popen(  # noqa: S603  our own command
            [*PROCTOR, *words], stdout=output, stderr=output
        )
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            usage.samples.append((time.time(), _rss_mb(process.pid)))
            if time.perf_counter() >= next_sample:
                next_sample = _sample_workers(process.pid, usage)
            time.sleep(_EVERY_S)
        usage.wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        if process.returncode:
            output.seek(0)
            raise SystemExit(output.read())
    used = ended[2]
    usage.cpu_s, usage.peak_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return usage


def evaluate_monitored(folder: Path, *flags: str) -> tuple[CommandUsage, list[EpisodeRecord]]:
    """Run ``proctor eval``; return its resource usage and its episodes."""
    usage = run_monitored("eval", *flags, "--video.episodes=0", f"--output_dir={folder}")
    return usage, read_journal(folder).rows


def _rss_mb(pid: int) -> float:
    """Return the resident memory of a process that has not been reaped, shared pages in full."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _sample_workers(pid: int, usage: CommandUsage) -> float:
    """Record the workers' memory; return when to sample again."""
    start = time.perf_counter()
    try:
        servers = psutil.Process(pid).children()
        for worker in [worker for server in servers for worker in server.children()]:
            usage.worker_mb = max(usage.worker_mb or 0.0, pss_mb(worker.pid))
            used = worker.cpu_times()
            usage.worker_cpu_s[worker.pid] = used.user + used.system
    except psutil.NoSuchProcess:
        pass  # it has just ended
    # Sampling 64 workers takes a while: spend at most a twentieth of the time on it.
    now = time.perf_counter()
    return now + max(_WORKERS_EVERY_S, 20 * (now - start))
