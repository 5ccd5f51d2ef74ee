"""Checkpoints keep the starts of their training episodes, over resumes and fine-tuning."""

from __future__ import annotations

from pathlib import Path

import pytest

from .builders import RUN, SMALL_ACT, words

pytest.importorskip("torch")

from proctor.cli import main
from proctor.trained_starts import TRAINED_STARTS_FILE, TrainedStarts, read_trained_starts
from tests.memoriser import starts_in
from tests.recordings import record


def starts_of(run: Path) -> TrainedStarts:
    found = read_trained_starts(run / "checkpoints/last/pretrained_model")
    assert found is not None
    return found


def recorded(root: Path, seed: int, n: int) -> Path:
    kept = {"record__keep": "all", "env__n_tasks": 1, "eval__use_async_envs": False}
    record(root, seed=seed, record__n_episodes=n, record__extra=["environment_state"], **kept)
    return root


def test_starts_are_kept_over_a_resume_on_other_data_and_fine_tuning(tmp_path: Path) -> None:
    data, other = recorded(tmp_path / "data", 1000, 3), recorded(tmp_path / "other", 5000, 2)
    run, tuned = tmp_path / "run", tmp_path / "tuned"
    first = {"steps": 2, "dataset.episodes": "[0,1]"}
    assert main(["train", *words(data, run, SMALL_ACT, RUN, first)]) == 0
    assert starts_of(run) == starts_in(data, [0, 1])
    more = ["--steps=4", f"--dataset.root={other}", "--dataset.episodes=[0]"]
    assert main(["train", "--resume", f"--output_dir={run}", *more]) == 0
    after = starts_in(data, [0, 1]).merged(starts_in(other, [0]))
    assert starts_of(run) == after
    base = run / "checkpoints/last/pretrained_model"
    begin = {"policy.path": str(base), "policy.device": "cpu"}
    last = {"steps": 2, "dataset.episodes": "[2]"}
    assert main(["train", *words(data, tuned, begin, RUN, last)]) == 0
    assert starts_of(tuned) == after.merged(starts_in(data, [2]))
    (base.resolve() / TRAINED_STARTS_FILE).unlink()  # as LeRobot's checkpoints
    assert main(["train", "--resume", f"--output_dir={run}", "--steps=6", *more[1:]]) == 0
    found = starts_of(run)
    assert found.groups == starts_in(other, [0]).groups
    assert "does not say which starts trained it" in found.unknown[0]
