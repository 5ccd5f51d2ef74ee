"""The validation loss: its samples, none of which is trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .builders import RUN, SMALL_ACT, words

pytest.importorskip("torch")

from proctor.cli import main
from proctor.config.builder import build
from proctor.config.lerobot.training import drop_lerobot_settings
from proctor.config.training import TrainConfig
from proctor.training.setup import prepare

SPLIT = {"dataset.eval_split": 0.5, "eval_steps": 4}
"""The held-out frames: 7 of the only episode of task 1, and 8 of the second of task 0."""


def judged(root: Path, *settings: dict) -> list[list[int]]:
    """Return the samples of the validation loss, by their index among all held-out samples."""
    given = dict(word[2:].split("=", 1) for word in words(root, root / "run", SMALL_ACT, *settings))
    setup = prepare(build(TrainConfig, drop_lerobot_settings(given)))
    assert setup.held_out is not None
    order = setup.held_out[1]
    return [batch.tolist() for batch in order.batches(0, order.batches_per_epoch)]


def test_every_held_out_sample_counts_once_where_tasks_are_balanced_too(numbers: Path) -> None:
    found = judged(numbers, SPLIT, {"batch_size": 5, "dataset.balance_tasks": "true"})
    assert np.concatenate(found).tolist() == list(range(15))


def test_where_some_are_enough_they_are_of_every_task(numbers: Path) -> None:
    assert judged(numbers, SPLIT, {"batch_size": 3, "max_eval_samples": 5}) == [[0, 1, 7], [8]]


def test_a_resumed_run_holds_out_nothing_that_was_trained_on(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, resume = tmp_path / "run", ["train", "--resume", f"--output_dir={tmp_path / 'run'}"]
    assert main(["train", *words(numbers, run, SMALL_ACT, RUN, {"steps": 2})]) == 0
    before = (run / "train.json").read_bytes()
    split = [f"--{name}={value}" for name, value in SPLIT.items()]
    assert main([*resume, "--steps=4", *split]) == 2
    said = capsys.readouterr().err
    assert "all validation episodes (1-2) were trained on before step 2" in said
    assert (run / "train.json").read_bytes() == before
    assert main([*resume, "--steps=4", split[0]]) == 0  # less to learn from, and nothing judged
