"""``proctor train-online`` with actor processes: folder, kills, signals, resumption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import run_evaluation
from proctor.report.training.data import read_training_folder, training_data
from proctor.rl.replay.journal import Journal
from proctor.trained_starts import read_trained_starts
from tests.ports import free_port
from tests.processes import children_of

FLAGS = [
    "--env.type=fake",
    "--env.episode_length=20",
    "--policy.type=gaussian_actor",
    "--policy.latent_dim=8",
    "--policy.actor_network_kwargs={hidden_dims: [8]}",
    "--policy.online_step_before_learning=20",
    "--policy.online_buffer_capacity=64",
    "--policy.online_steps=100",
    "--algorithm.critic_network_kwargs.hidden_dims=[8]",
    "--rl.lockstep=true",
    "--rl.fix=batch",
    "--save_freq=30",
    "--log_freq=30",
]
LONGEST_S = 300.0


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "proctor.cli", "train-online", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = process.communicate(timeout=LONGEST_S)
    return process.returncode, text


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_checkpoint(folder: Path) -> bool:
    return (folder / "checkpoints/last").exists()


def final_tensors(folder: Path) -> dict[str, bytes]:
    file = folder / "checkpoints/last/training_state/learner.safetensors"
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(file).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("online") / "whole"
    code, text = end(start(*FLAGS, f"--output_dir={folder}"))
    assert code == 0, text
    return folder


def test_the_folder_has_lerobots_checkpoint_a_log_and_a_report(whole: Path) -> None:
    last = whole / "checkpoints/last"
    assert last.resolve().name == "000100"
    for name in ("pretrained_model", "algorithm", "training_state/critic"):
        assert (last / name).is_dir()
    training = read_training_folder(whole)
    assert (training.step, training.planned) == (100, 100)
    assert training.online_rows[-1].online_buffer == 64
    charts = training_data(training, whole)["online"]["charts"]
    assert {chart["title"] for chart in charts} >= {"Losses", "Replay buffers", "Speed"}
    assert (whole / "report.html").is_file()


def test_a_checkpoint_knows_the_starts_of_its_episodes(whole: Path, tmp_path: Path) -> None:
    policy = whole / "checkpoints/last/pretrained_model"
    known = read_trained_starts(policy)
    assert known is not None
    assert known.unknown == ()
    assert len(known) >= 5  # 100 steps in episodes of at most 20
    first = min(whole.glob("checkpoints/0*"))
    earlier = read_trained_starts(first / "pretrained_model")
    assert earlier is not None
    assert len(earlier) < len(earlier.merged(known)) == len(known)
    (group,) = known.groups.values()
    played = sorted(int(name.removeprefix("seed ")) for _, name in group.starts.values())
    for seed, seen in ((played[0], 1), (played[-1] + 100, 0)):
        settings = {"policy.path": str(policy), "policy.device": "cpu", "env.type": "fake"}
        settings |= {"eval.n_episodes": 1, "eval.use_async_envs": False, "seed": seed}
        settings |= {"output_dir": str(tmp_path / str(seed))}
        context = prepare(build(EvalConfig, settings))
        found = run_evaluation(context, settings).contamination
        assert found is not None
        assert (found.unknown, found.seen, found.starts) == (None, seen, 1)


def test_a_second_training_in_the_same_folder_is_refused(whole: Path) -> None:
    code, text = end(start(*FLAGS, f"--output_dir={whole}"))
    assert code == 2
    assert "--resume" in text


def kill_an_actor_of(process: subprocess.Popen[str]) -> bool:
    actors = children_of(process.pid, "spawn_main")
    for actor in actors[:1]:
        actor.kill()
    return bool(actors)


def test_killed_processes_and_signals_change_no_bit(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "disturbed"
    # Slow steps: kill and signal come before the end on any machine.
    process = start(*FLAGS, "--env.step_ms=50", f"--output_dir={folder}")
    wait_until(lambda: has_checkpoint(folder))
    process.kill()
    process.communicate()
    stored = len(Journal(folder / "replay/online"))
    assert stored >= 49

    before = len(list((folder / "checkpoints").glob("0*")))
    process = start("--resume", f"--output_dir={folder}")
    wait_until(lambda: kill_an_actor_of(process))
    wait_until(lambda: len(list((folder / "checkpoints").glob("0*"))) > before)
    process.send_signal(signal.SIGINT)
    code, text = end(process)
    assert code == 130, text
    assert "actor-0" in text
    assert "--resume" in text

    code, text = end(start("--resume", f"--output_dir={folder}"))
    assert code == 0, text
    assert final_tensors(folder) == final_tensors(whole)


def test_a_learner_and_an_actor_of_two_commands_end_together(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    address = f"--learner=127.0.0.1:{free_port()}"
    folder = tmp_path / "learner"
    flags = [*FLAGS, "--policy.online_steps=60", address]
    flags.remove("--policy.online_steps=100")
    learner = start(*flags, "--role=learner", f"--output_dir={folder}")
    actor = start(*flags, "--role=actor", f"--output_dir={tmp_path / 'actor'}")
    for process in (actor, learner):
        code, text = end(process)
        assert code == 0, text
    assert len(Journal(folder / "replay/online")) >= 60
    assert (folder / "checkpoints/last").resolve().name == "000060"
