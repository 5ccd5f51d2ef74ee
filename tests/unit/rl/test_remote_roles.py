"""``proctor train-online`` in two processes over gRPC: kills of either one, and the end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proctor.rl.replay.journal import Journal
from tests.ports import free_port

pytest.importorskip("grpc", reason="the learner needs grpcio: pip install 'proctor[wire]'")

FLAGS = [
    "--env.type=fake",
    "--env.episode_length=20",
    "--policy.type=gaussian_actor",
    "--policy.latent_dim=8",
    "--policy.actor_network_kwargs={hidden_dims: [8]}",
    "--policy.online_step_before_learning=20",
    "--algorithm.critic_network_kwargs.hidden_dims=[8]",
    "--rl.lockstep=true",
    "--save_freq=40",
]
LONGEST_S = 300.0


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "proctor.cli", "train-online", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PROCTOR_API_KEY": "secret"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, text
    return text


def wait_until(is_true: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not is_true():
        for process in processes:
            assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_killed_learners_and_actors_lose_and_repeat_nothing(tmp_path: Path) -> None:
    address = f"--learner=127.0.0.1:{free_port()}"
    folder = tmp_path / "run"
    learner = ["--role=learner", address, f"--output_dir={folder}"]
    actor = [*FLAGS, "--role=actor", address, f"--output_dir={tmp_path / 'actor'}"]
    with started(*actor) as acting:
        with started(*FLAGS, *learner) as learning:
            wait_until((folder / "checkpoints/last").exists, learning, acting)
        acting.kill()
        # The budget is unlimited until here, so that the kill comes before the end on any machine.
        # The actor is not told of the new one: the learner ends it.
        steps = len(Journal(folder / "replay/online")) + 40
        budget = f"--policy.online_steps={steps}"
        with started(*actor) as again, started("--resume", *learner, budget) as resumed:
            assert "the learner listens" in end(resumed)
            told = end(again)
    assert "the training has ended" in told
    assert " episode" in told  # its progress
    journal = Journal(folder / "replay/online")
    rows = list(journal.read(0, len(journal)))
    assert len({row.actor for row in rows}) == 1
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= steps
