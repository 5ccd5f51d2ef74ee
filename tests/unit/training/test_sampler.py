"""The order of frames is LeRobot's."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest

from tests.refusals import refuses

pytest.importorskip("torch", reason="training needs torch: pip install 'proctor[torch]'")

from proctor.errors import UsageError
from proctor.training.data.sampler import BatchOrder, split_episodes, usable_frames

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "data" / "misc.json").read_text())[
    "sampler"
]


@pytest.fixture
def order() -> BatchOrder:
    lengths = [end - start for start, end in zip(GOLDEN["from"], GOLDEN["to"], strict=True)]
    frames = usable_frames(lengths, GOLDEN["drop_n_last_frames"])
    return BatchOrder(frames, batch_size=4, seed=GOLDEN["seed"])


def test_the_frames_are_lerobots(order):
    assert order.frames.tolist() == GOLDEN["unshuffled"]
    assert len(order.frames) == GOLDEN["len"]


@pytest.mark.parametrize("epoch", [0, 1])
def test_the_order_is_lerobots(order, epoch):
    assert order.epoch(epoch).tolist() == GOLDEN[f"epoch{epoch}"]


def test_a_step_lies_where_lerobot_has_it(order):
    where, expected = order.position(7), GOLDEN["resume_state_step7_bs4"]
    assert (where.epoch, where.start) == (expected["epoch"], expected["start_index"])


def test_the_epochs_of_a_dataset_begin_at_its_first_step(order):
    later = replace(order, first_step=7)
    assert (later.position(7).epoch, later.position(7).start) == (0, 0)
    batches = [[batch.tolist() for batch in o.batches(o.first_step, 12)] for o in (later, order)]
    assert batches[0] == batches[1][:5]


def test_batches_run_through_epochs_and_the_last_of_each_is_smaller(order):
    batches = [batch.tolist() for batch in order.batches(0, 10)]
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 3] * 2
    assert list(chain(*batches[:5])) == GOLDEN["epoch0"]
    assert list(chain(*batches[5:])) == GOLDEN["epoch1"]


@pytest.mark.parametrize("first", [0, 1, 4, 5, 7, 13])
def test_a_resumed_run_sees_the_same_batches(order, first):
    whole = [batch.tolist() for batch in order.batches(0, 14)]
    assert [batch.tolist() for batch in order.batches(first, 14)] == whole[first:]
    assert len(list(islice(order.batches(first, 14), 100))) == 14 - first


def test_short_episodes_are_skipped_and_nothing_left_is_said():
    assert usable_frames([3, 5, 2], 3).tolist() == [3, 4]
    assert usable_frames([3, 5, 2], 0).tolist() == list(range(10))
    with refuses(UsageError, "dataset.no-usable-frame"):
        usable_frames([3, 5, 2], 5)


def test_the_last_episodes_of_every_task_are_held_out():
    tasks = ["push", "pull", "push", "push", "pull", "lift"]
    assert split_episodes(tasks, 0.0) == ([0, 1, 2, 3, 4, 5], [])
    assert split_episodes(tasks, 0.4) == ([0, 1], [2, 3, 4, 5])
    kept, held_out = split_episodes(["push"] * 10, 0.2)
    assert held_out == [8, 9]
    assert sorted(kept + held_out) == list(range(10))


def test_an_epoch_holds_every_frame_once():
    order = BatchOrder(np.arange(1000), batch_size=64, seed=3)
    assert sorted(order.epoch(5)) == list(range(1000))
    assert order.epoch(5).tolist() != order.epoch(6).tolist()


def test_tasks_come_equally_often_where_that_is_asked_for():
    tasks = np.array([0] * 30 + [1] * 6 + [2] * 3)
    order = BatchOrder(np.arange(39) + 100, batch_size=13, seed=5, tasks=tasks)
    for epoch in (0, 1):
        frames = order.epoch(epoch)
        assert np.bincount(tasks[frames - 100]).tolist() == [13, 13, 13]
        assert set(frames[tasks[frames - 100] != 0].tolist()) == set(range(130, 139))
    assert order.epoch(0).tolist() != order.epoch(1).tolist()
    whole = [batch.tolist() for batch in order.batches(0, 9)]
    assert [batch.tolist() for batch in order.batches(4, 9)] == whole[4:]


def test_more_loader_processes_than_cores_are_no_warning_of_torch(order, monkeypatch):
    import torch
    from torch.utils.data import dataloader

    from proctor.training.data.loading import LoaderSettings, TrainingSamples, batches

    monkeypatch.setattr(dataloader, "_MultiProcessingDataLoaderIter", lambda loader: iter(()))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    samples = TrainingSamples(None, {}, lambda words: {})  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not list(
            batches(samples, order, range(3), LoaderSettings(4, 2, "spawn"), torch.device("cpu"))
        )
