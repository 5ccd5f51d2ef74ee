"""The wordings of training instructions (--dataset.paraphrase_tasks)."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from proctor.benchmarks.perturbations.training_wordings import training_wordings
from proctor.training.wordings import TaskWordings

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
