"""The hardware limit of a run: the least times of its work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measurements import gpu_limit, rendering

times = st.floats(0.0, 1e4)
NOTHING = np.zeros((1, 1, 3), np.uint8)


@given(
    span_s=st.floats(0.1, 1e4), renders=times, infer_share=st.floats(0, 1),
    sim_share=st.floats(0, 1), workers=st.integers(1, 64), cores=st.integers(1, 64),
    rate=times, sizes=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=16),
    requests=st.integers(0, 500), batches=st.integers(0, 100),
)  # fmt: skip
def test_no_fraction_exceeds_1_for_any_reference_measurement(
    span_s: float, renders: float, infer_share: float, sim_share: float, workers: int, cores: int,
    rate: float, sizes: list[float], requests: int, batches: int,
) -> None:  # fmt: skip
    work = gpu_limit.RunWork(
        span_s, renders, batches, requests, infer_share * span_s,
        sim_share * workers * span_s, workers, cores,
    )  # fmt: skip
    limit = gpu_limit.limit_of(work, rate, dict(enumerate(sizes, start=1)))
    assert 0 <= limit.fraction <= 1 + 1e-9


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=20),
    seconds=st.lists(st.floats(0.001, 1.0), min_size=6, max_size=6),
)
def test_the_least_mean_is_below_every_mix_of_batches_with_that_mean(
    sizes: list[int], seconds: list[float]
) -> None:
    batch_s = dict(enumerate(seconds, start=1))
    least = gpu_limit.least_mean(batch_s, sum(sizes) / len(sizes))
    assert least <= sum(batch_s[size] for size in sizes) / len(sizes) + 1e-9


def test_the_limit_is_the_largest_kind_of_work_and_not_their_sum() -> None:
    work = gpu_limit.RunWork(30.0, 6000, 500, 5000, 12.0, 150.0, 14, 16)
    limit = gpu_limit.limit_of(work, 300.0, {8: 0.01, 10: 0.01, 14: 0.012})
    assert (limit.rendering_s, limit.inference_s) == (20.0, 5.0)
    assert limit.physics_s == pytest.approx(150 / 16)
    assert limit.fraction == pytest.approx(20 / 30)


def test_unreliable_reference_measurements_are_named() -> None:
    work = gpu_limit.RunWork(30.0, 6000, 500, 5000, 12.0, 150.0, 14, 16)
    limit = gpu_limit.limit_of(work, 100.0, {8: 0.1, 14: 0.1})
    assert limit.unreliable == ("rendering", "inference")


def test_the_best_rate_is_that_of_the_fullest_second() -> None:
    slow = [float(i) for i in range(10)]
    fast = [20 + i / 100 for i in range(100)]
    assert gpu_limit.best_rate([*fast, *slow]) == 100
    assert gpu_limit.best_rate([]) == 0


def test_only_images_rendered_while_all_processes_render_count() -> None:
    """Two processes of eight images a second; one begins early, and is twice as fast alone."""
    alone = [step / 32 for step in range(32)]
    both = [1 + step / 8 for step in range(25)] * 2
    assert rendering.RenderedFrames([*alone, *both], 1.0, 4.0, 4.0, NOTHING).best == 16
    assert rendering.RenderedFrames(alone, 1.0, 4.0, 4.0, NOTHING).best == 0, (
        "the other had not begun"
    )
