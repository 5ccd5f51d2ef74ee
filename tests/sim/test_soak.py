"""Memory, processes and descriptors stay flat over hundreds of episodes."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from benchmarks.engine import pss_mb

from proctor.recorders.journal import read_journal

pytestmark = [pytest.mark.sim, pytest.mark.slow]


@dataclass(frozen=True)
class Sample:
    episodes: int
    parent_mb: float
    worker_mb: float  # the largest worker, proportional set size
    descriptors: int
    processes: int


def watch(folder: Path, *flags: str) -> list[Sample]:
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
                samples.append(
                    Sample(
                        episodes=len(read_journal(folder).rows),
                        parent_mb=process.memory_info().rss / 2**20,
                        worker_mb=max(pss_mb(worker.pid) for worker in workers),
                        descriptors=process.num_fds(),
                        processes=len(process.children(recursive=True)),
                    )
                )
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
