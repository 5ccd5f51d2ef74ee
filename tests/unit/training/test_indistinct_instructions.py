"""Instructions that a policy cannot distinguish are reported before training or evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from proctor.cli import main
from proctor.datasets.writer import DatasetWriter

from .builders import RUN, SMALL_LANGUAGE_ACT, words
from .test_train import train

ONE = RUN | {"steps": 1, "save_freq": 1}
LAST = "checkpoints/last/pretrained_model"
POINT = ["--env.type=fake", "--env.n_tasks=2", "--env.episode_length=6", "--eval.n_episodes=1"]
TEXTS = '--policy.instructions={point-0: "move by +x", point-1: "move by -x"}'


@pytest.fixture
def plus_and_minus(tmp_path: Path) -> Path:
    """A dataset with two instructions that differ by a sign."""
    sizes = {"observation.state": 2, "observation.environment_state": 4, "action": 2}
    features = {
        key: {"dtype": "float32", "shape": [size], "names": None} for key, size in sizes.items()
    }
    with DatasetWriter.create(tmp_path / "signs", fps=10, features=features) as writer:
        for sign in "+-":
            for step in range(6):
                numbers = np.sin(step + np.arange(4)).astype(np.float32)
                frame = {key: numbers[:size] for key, size in sizes.items()}
                writer.add_frame(frame, f"move by {sign}x")
            writer.end_episode()
    return tmp_path / "signs"


@pytest.fixture
def trained(plus_and_minus: Path, tmp_path: Path) -> Path:
    train(*words(plus_and_minus, tmp_path / "run", SMALL_LANGUAGE_ACT, ONE))
    return tmp_path / "run"


def turn_old(run: Path) -> None:
    """Turn a checkpoint into one of the first text encoding."""
    file = run / LAST / "config.json"
    config = json.loads(file.read_text())
    assert config.pop("text_encoding") == 2
    file.write_text(json.dumps(config))


def evaluate(policy: Path, run: Path) -> None:
    how = [f"--policy.path={policy}", "--policy.device=cpu", *POINT, TEXTS, "--video.episodes=0"]
    assert main(["eval", *how, f"--output_dir={run}"]) == 0


def test_a_new_policy_tells_signs_apart_and_nothing_is_said(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(trained / LAST, tmp_path / "eval")
    said = capsys.readouterr()
    assert "alike" not in said.out + said.err


def test_an_old_checkpoint_is_evaluated_with_one_warning(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn_old(trained)
    capsys.readouterr()
    evaluate(trained / LAST, tmp_path / "eval")
    said = capsys.readouterr()
    (line,) = [line for line in (said.out + said.err).splitlines() if "alike" in line]
    assert "'move by +x' and 'move by -x'" in line
    assert "warning" in line


def test_an_old_checkpoint_is_not_fine_tuned_on_texts_that_it_reads_alike(
    plus_and_minus: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn_old(trained)
    how = {"policy.path": trained / LAST, "policy.device": "cpu"}
    train(*words(plus_and_minus, tmp_path / "tuned", ONE, how), expect=2)
    assert "'move by +x' and 'move by -x'" in capsys.readouterr().err
    assert not (tmp_path / "tuned").exists()
    one = {"dataset.episodes": "[0]"}
    train(*words(plus_and_minus, tmp_path / "tuned", ONE, how, one))
    assert json.loads((tmp_path / "tuned" / LAST / "config.json").read_text())["text_encoding"] == 1


def test_an_old_training_is_resumed_as_it_began_with_a_warning(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn_old(trained)
    train("--resume", f"--output_dir={trained}", "--steps=2")
    said = capsys.readouterr()
    assert "'move by +x' and 'move by -x' alike" in said.out + said.err
    assert json.loads((trained / LAST / "config.json").read_text())["text_encoding"] == 1
