"""A proctor command under observation: wall time, its own CPU time, memory while it runs."""

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
class Watched:
    """What a command cost. Its CPU time and peak are its own: workers are no part of them."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    began: float
    samples: list[tuple[float, float]] = field(default_factory=list)
    """When, and the memory of the parent then (MB)."""
    worker_mb: float | None = None
    """The most that any worker ever had, shared pages by their share; None when none was seen."""
    worker_cpu_s: dict[int, float] = field(default_factory=dict)
    """CPU time of each worker when it was last seen."""

    @property
    def all_cpu_s(self) -> float:
        """CPU time of the parent and its workers, less what they used after the last look."""
        return self.cpu_s + sum(self.worker_cpu_s.values())

    def running_mb(self, rows: Sequence[EpisodeRecord]) -> float | None:
        """Return the most memory of the parent while episodes ended; None when not seen."""
        begin, end = min(row.start_time for row in rows), max(row.end_time for row in rows)
        seen = [mb for moment, mb in self.samples if begin <= moment <= end]
        return max(seen, default=None)


def watch(*words: str) -> Watched:
    """Run ``proctor WORDS`` to its end.

    Raises:
        SystemExit: with what the command said, when it fails.
    """
    watched, start, look_at = Watched(0.0, 0.0, 0.0, time.time()), time.perf_counter(), 0.0
    with tempfile.TemporaryFile("w+") as said:  # a pipe would fill up: nobody reads meanwhile
        process = subprocess.Popen(  # noqa: S603  our own words
            [*PROCTOR, *words], stdout=said, stderr=said
        )
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            watched.samples.append((time.time(), _rss_mb(process.pid)))
            if time.perf_counter() >= look_at:
                look_at = _look_at_workers(process.pid, watched)
            time.sleep(_EVERY_S)
        watched.wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        if process.returncode:
            said.seek(0)
            raise SystemExit(said.read())
    used = ended[2]
    watched.cpu_s, watched.peak_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return watched


def evaluate_watched(folder: Path, *flags: str) -> tuple[Watched, list[EpisodeRecord]]:
    """Run ``proctor eval`` under observation; return what it cost and its episodes."""
    watched = watch("eval", *flags, "--video.episodes=0", f"--output_dir={folder}")
    return watched, read_journal(folder).rows


def _rss_mb(pid: int) -> float:
    """Return the memory of a process that we have not waited for yet, shared pages in full."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _look_at_workers(pid: int, watched: Watched) -> float:
    """Note what memory the workers have; return when to look again."""
    start = time.perf_counter()
    try:
        servers = psutil.Process(pid).children()
        for worker in [worker for server in servers for worker in server.children()]:
            watched.worker_mb = max(watched.worker_mb or 0.0, pss_mb(worker.pid))
            used = worker.cpu_times()
            watched.worker_cpu_s[worker.pid] = used.user + used.system
    except psutil.NoSuchProcess:
        pass  # it has ended meanwhile
    # A look at 64 workers takes a while: never spend more than a twentieth of the time on it.
    now = time.perf_counter()
    return now + max(_WORKERS_EVERY_S, 20 * (now - start))
