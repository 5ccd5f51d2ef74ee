"""Metrics of the steps since the last report."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

import torch

from proctor.training.distributed import DistributedContext
from proctor.training.metrics.metrics import MetricTracker, Series


def test_a_meter_keeps_no_more_of_a_devices_numbers_than_it_must():
    series = Series()
    for value in range(2500):
        series.add(torch.tensor(float(value)))
    assert len(series._on_device) == 500
    assert series.to_list() == [float(value) for value in range(2500)]
    assert series.mean() == 1249.5


def test_a_checkpoint_is_no_part_of_the_time_of_the_steps_around_it(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    timed = MetricTracker(torch.device("cpu"), DistributedContext())
    for _ in timed.timed_batches([{}, {}]):
        now[0] += 1.0
        timed.add_step(4, torch.tensor(0.5), {}, None)
        with timed.untimed():
            now[0] += 100.0
    metrics = timed.collect(2, 1e-3)
    assert (metrics.step_s, metrics.samples_per_s, metrics.waiting) == (1.0, 4.0, 0.0)
