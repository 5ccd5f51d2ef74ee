"""The wordings of training instructions (--dataset.paraphrase_tasks)."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

pytest.importorskip("torch")

from proctor.benchmarks.perturbations.training_wordings import training_wordings, wordings_digest
from proctor.runs.training import read_training
from proctor.training.data.wordings import TaskWordings

from .builders import RUN, SMALL_LANGUAGE_ACT, words, write_numbers
from .test_train import train

TASK = "Open a drawer"


def test_half_of_the_samples_keep_the_recorded_instruction_and_all_wordings_are_drawn():
    drawn = [TaskWordings(7).draw(TASK, sample) for sample in range(2000)]
    assert 900 < drawn.count(TASK) < 1100
    assert set(drawn) == {TASK, *training_wordings(TASK)}


def test_a_sample_has_the_same_wording_again_and_another_seed_draws_others():
    one, again, other = (
        [TaskWordings(seed).draw(TASK, sample) for sample in range(50)] for seed in (7, 7, 8)
    )
    assert one == again
    assert one != other


def test_a_sample_without_an_instruction_stays_without():
    assert TaskWordings(7).draw("", 1) == ""


def test_a_resumed_training_says_that_the_wordings_have_changed(tmp_path, capsys):
    data, run = write_numbers(tmp_path / "numbers"), tmp_path / "run"
    train(*words(data, run, SMALL_LANGUAGE_ACT, RUN, {"steps": 1}))
    record = read_training(run)
    assert record is not None
    assert record.wordings == wordings_digest()
    older = asdict(replace(record, wordings=None))
    for kept in (run / "train.json", *run.glob("checkpoints/0*/*/train.json")):
        kept.write_text(json.dumps(older))
    train("--resume", f"--output_dir={run}", "--steps=2")
    assert "wordings have changed" in capsys.readouterr().err
    train("--resume", f"--output_dir={run}", "--steps=3")
    assert "wordings have changed" not in capsys.readouterr().err
