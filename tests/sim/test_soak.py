"""Memory, processes and descriptors stay flat over hundreds and thousands of episodes.

`make soak` runs the last test alone and shows its table (docs/measurements.md).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from measurements.command import pss_mb

from proctor.runs.journal import JOURNAL_FILE, read_journal

pytestmark = [pytest.mark.sim, pytest.mark.slow]


@dataclass(frozen=True)
class Sample:
    episodes: int
    parent_mb: float
    worker_mb: float  # the largest worker, proportional set size
    oldest_worker_mb: float
    descriptors: int
    processes: int


def watch(
    folder: Path,
    *flags: str,
    between: Callable[[list[psutil.Process]], None] = lambda workers: None,
) -> list[Sample]:
    """Run Meta-World with two workers and sample; ``between`` is called with them each time."""
    process = psutil.Popen(
        [sys.executable, "-m", "proctor.cli", "eval", "--env.type=metaworld", *flags,
         "--eval.batch_size=2", f"--output_dir={folder}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    samples = []
    while process.poll() is None:
        time.sleep(0.3)
        try:
            workers = [w for server in process.children() for w in server.children()]
            if len(workers) == 2:
                workers.sort(key=lambda worker: worker.create_time())
                samples.append(
                    Sample(
                        episodes=(folder / JOURNAL_FILE).read_bytes().count(b"\n"),
                        parent_mb=process.memory_info().rss / 2**20,
                        worker_mb=max(pss_mb(worker.pid) for worker in workers),
                        oldest_worker_mb=pss_mb(workers[0].pid),
                        descriptors=process.num_fds(),
                        processes=len(process.children(recursive=True)),
                    )
                )
                between(workers)
        except (psutil.NoSuchProcess, OSError):
            continue
    assert process.wait() == 0
    return samples


def test_one_task_five_hundred_episodes(tmp_path: Path) -> None:
    samples = watch(
        tmp_path / "run", "--policy.type=random", "--policy.n_action_steps=5",
        "--env.task=hammer-v3", "--env.episode_length=50", "--eval.n_episodes=500",
    )  # fmt: skip
    early = [s for s in samples if 50 <= s.episodes <= 150]
    late = [s for s in samples if s.episodes >= 400]
    assert early
    assert late
    assert max(s.worker_mb for s in late) < 1.02 * max(s.worker_mb for s in early) + 1
    assert max(s.parent_mb for s in late) < 1.02 * max(s.parent_mb for s in early) + 1
    assert max(s.descriptors for s in late) <= max(s.descriptors for s in early)
    assert max(s.processes for s in late) <= max(s.processes for s in early)


def test_all_tasks_ten_episodes_each_stay_under_the_bound(tmp_path: Path) -> None:
    samples = watch(
        tmp_path / "run", "--policy.type=expert", "--env.task=mt50", "--env.episode_length=20",
        "--eval.n_episodes=10",
    )  # fmt: skip
    assert max(s.episodes for s in samples) > 400
    assert max(s.worker_mb for s in samples) < 250
    half, end = samples[len(samples) // 2], samples[-1]
    assert end.descriptors <= half.descriptors
    assert end.processes <= half.processes
    assert end.parent_mb < 1.02 * half.parent_mb + 1


SOAK = [
    "--policy.type=random", "--policy.inputs=observation.state", "--policy.n_action_steps=5",
    "--env.task=mt50", "--env.episode_length=30", "--eval.n_episodes=100", "--video.episodes=0",
]  # fmt: skip
KILL_EVERY_S = 20
WINDOW = 500


class Killer:
    """Kills the younger worker every 20 seconds: the older one shows what a long life does."""

    def __init__(self) -> None:
        self.kills = 0
        self._due = time.monotonic() + KILL_EVERY_S

    def __call__(self, workers: list[psutil.Process]) -> None:
        if time.monotonic() >= self._due:
            workers[-1].kill()
            self.kills += 1
            self._due += KILL_EVERY_S


def high_water(samples: list[Sample]) -> Sample:
    """The largest of every figure."""
    return Sample(
        episodes=samples[-1].episodes,
        parent_mb=max(s.parent_mb for s in samples),
        worker_mb=max(s.worker_mb for s in samples),
        oldest_worker_mb=max(s.oldest_worker_mb for s in samples),
        descriptors=max(s.descriptors for s in samples),
        processes=max(s.processes for s in samples),
    )


@pytest.mark.timeout(7200)
def test_five_thousand_episodes_with_a_worker_killed_every_twenty_seconds(tmp_path: Path) -> None:
    """A stop rule that is never met interleaves the tasks: 500 episodes have seen all 50."""
    killer, started = Killer(), time.monotonic()
    folder, calm = tmp_path / "run", tmp_path / "calm"
    samples = watch(folder, *SOAK, "--eval.stop_when=ci_width<0.00001", between=killer)
    windows = [
        high_water([s for s in samples if start <= s.episodes < start + WINDOW])
        for start in range(0, 5000, WINDOW)
    ]
    print(f"\n{time.monotonic() - started:.0f} s, {killer.kills} workers killed")
    for window in windows:
        print(window)
    rows = read_journal(folder).rows
    assert len(rows) == 5000
    assert all(row.error is None for row in rows)
    assert killer.kills >= 5
    assert any(row.attempts > 1 for row in rows)
    _, first, *later = windows
    for window in later:
        assert window.parent_mb < 1.05 * first.parent_mb
        assert window.worker_mb < 1.05 * first.worker_mb
        assert window.oldest_worker_mb < 1.05 * first.oldest_worker_mb
        assert window.descriptors <= first.descriptors
        assert window.processes <= first.processes
    watch(calm, *SOAK, "--eval.episodes=[0,42,99]")
    expected = {row.key: (row.digest, row.steps) for row in read_journal(calm).rows}
    assert len(expected) == 150
    assert {row.key: (row.digest, row.steps) for row in rows if row.key in expected} == expected
