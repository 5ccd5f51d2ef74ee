"""Write the folders in ``data/written_by_a825226``, with the code of that commit.

Run it with the Python of a venv in which commit a825226 is installed, in an empty folder:

    git worktree add ../then a825226 && make -C ../then .venv/.installed
    mkdir made && cd made && ../../then/.venv/bin/python ../tests/golden/make_written_by_a825226.py

All paths in the commands are relative, so the folders work wherever they are copied to, as long
as the command that reads them runs in their parent folder.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PROCTOR = [sys.executable, "-m", "proctor"]
WORLD = ["--env.type=fake", "--env.n_tasks=2", "--env.episode_length=14"]
NETWORK = [
    *("--policy.chunk_size=4", "--policy.n_action_steps=4"),
    *("--policy.n_heads=2", "--policy.dim_feedforward=12", "--policy.n_encoder_layers=1"),
    "--policy.device=cpu",
]
TRAINING = [
    *("--dataset.repo_id=me/numbers", "--dataset.root=numbers", "--num_workers=0"),
    *("--batch_size=4", "--save_freq=2", "--keep_last=1", "--log_freq=1"),
    "--policy.push_to_hub=false",
]
NO_VIDEO = "--video.episodes=0"


def proctor(*words: str) -> None:
    """Run a command that must succeed."""
    subprocess.run([*PROCTOR, *words], check=True)


def interrupted(journal: Path, *words: str) -> None:
    """Run a command and interrupt it when its journal has two episodes."""
    process = subprocess.Popen([*PROCTOR, *words])
    while not journal.exists() or journal.read_text().count("\n") < 2:
        time.sleep(0.01)
        assert process.poll() is None, "it ended before it was interrupted"
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130


def evaluations() -> None:
    """Write a finished run, one to resume, and the recordings."""
    expert = ["--policy.type=expert", *WORLD, "--eval.batch_size=2"]
    proctor("eval", *expert, "--eval.n_episodes=4", "--output_dir=finished", NO_VIDEO)
    slow = ["--env.step_ms=30", "--eval.n_episodes=4", "--output_dir=interrupted", NO_VIDEO]
    interrupted(Path("interrupted/episodes.jsonl"), "eval", *expert, *slow)
    proctor("record", *expert, "--dataset.repo_id=me/numbers", "--dataset.root=numbers",
            "--record.n_episodes=2", "--output_dir=numbers.recording",
            "--record.images=false", "--record.extra=[environment_state]")  # fmt: skip
    interrupted(
        Path("half.recording/episodes.jsonl"), "record", *expert, "--env.step_ms=30",
        "--dataset.repo_id=me/half", "--dataset.root=half", "--record.n_episodes=3",
        "--output_dir=half.recording", "--record.images=false",
    )  # fmt: skip
    proctor("record", *expert, "--dataset.repo_id=me/seen", "--dataset.root=seen",
            "--record.n_episodes=1", "--output_dir=seen.recording", "--env.image_size=16",
            "--dataset.codec=h264")  # fmt: skip
    shutil.rmtree("seen.recording")


def trainings() -> None:
    """Write two trainings, and an evaluation of the checkpoint of each."""
    act = [
        "--policy.type=act",
        "--policy.dim_model=8",
        "--policy.latent_dim=4",
        "--policy.n_vae_encoder_layers=1",
    ]
    told = ["--policy.type=act_words", "--policy.n_decoder_layers=1", "--policy.dim_model=4"]
    for name, policy in (("act", act), ("act_words", told)):
        training = f"{name}.training"
        proctor("train", *TRAINING, *NETWORK, *policy, "--steps=4", f"--output_dir={training}")
        trained = f"--policy.path={training}/checkpoints/last/pretrained_model"
        run = ["--eval.n_episodes=2", f"--output_dir={name}.run", NO_VIDEO]
        proctor("eval", trained, *WORLD, *run)


if __name__ == "__main__":
    assert not list(Path().iterdir()), "run this in an empty folder"
    evaluations()
    trainings()
    for made_again in [*Path().rglob(".lock"), *Path().rglob("report.html")]:
        made_again.unlink()
