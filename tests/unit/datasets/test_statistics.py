"""Statistics are LeRobot's for ordinary data; deviations and quantiles are those of the data."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.datasets.format.tables import as_stats
from proctor.datasets.numbers.quantiles import RunningStatistics, StreamingQuantiles
from proctor.datasets.numbers.statistics import (
    QUANTILES,
    FeatureStats,
    PixelCounts,
    aggregate,
    array_stats,
    sampled_frames,
)
from proctor.features import Array

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "data" / "misc.json").read_text()
)


def edit_plan(name: str, shape: tuple[int, ...], low: float = -1, high: float = 1) -> Array:
    waves = np.sin(np.arange(np.prod(shape)) * 1.7 + zlib.crc32(name.encode()) % 977)
    return ((waves + 1) / 2 * (high - low) + low).reshape(shape).astype(np.float32)


EPISODES = (edit_plan("ep1", (40, 3)), edit_plan("ep2", (25, 3), -3, 5))


def as_lists(stats: FeatureStats) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in stats.items()}


def picture_stats(pictures: Array) -> FeatureStats:
    counts = PixelCounts()
    for picture in pictures:
        counts.add(picture)
    return counts.stats()


def totals_of(episodes: list[Array]) -> FeatureStats:
    totals = RunningStatistics()
    for values in episodes:
        totals.add({"x": array_stats(values)}, {"x": values}, {})
    return totals.stats()["x"]


def assert_as_lerobots(stats: FeatureStats, golden: dict[str, list[Any]]) -> None:
    """Compare means and deviations at 1e-5 (LeRobot sums in float32), the rest to the bit."""
    ours = as_lists(stats)
    assert ours.keys() == golden.keys()
    for name, expected in golden.items():
        if name in ("mean", "std"):
            assert ours[name] == pytest.approx(expected, rel=1e-5)
        else:
            assert ours[name] == expected, name


@pytest.mark.parametrize("which", [0, 1])
def test_the_numbers_of_one_episode_are_lerobots(which: int) -> None:
    assert_as_lerobots(array_stats(EPISODES[which]), GOLDEN["stats"][f"ep{which + 1}"])


def test_a_scalars_statistics_have_one_entry() -> None:
    assert_as_lerobots(array_stats(EPISODES[0][:, 0]), GOLDEN["stats_scalar"])


AROUND = [(500, 0.01), (2013, 0.05), (5000, 0.2), (1e5, 5), (-300, 0.02)]
"""Means and deviations of which float32 squares keep no digit."""


def float32_around(mean: float, deviation: float, n_frames: int = 50) -> list[Array]:
    generator = np.random.default_rng(0)
    return [
        (mean + generator.normal(size=(n_frames, 2)) * deviation).astype(np.float32)
        for _ in range(6)
    ]


@pytest.mark.parametrize(("mean", "deviation"), AROUND)
def test_deviations_around_a_large_mean_are_those_of_the_data(
    mean: float, deviation: float
) -> None:
    episodes = float32_around(mean, deviation)
    each = [{"x": array_stats(values)} for values in episodes]
    for values, stats in zip(episodes, each, strict=True):
        exact = values.astype(np.float64)
        np.testing.assert_allclose(stats["x"]["std"], exact.std(axis=0), rtol=1e-12)
        np.testing.assert_allclose(stats["x"]["mean"], exact.mean(axis=0), rtol=1e-15)
    together = np.concatenate(episodes).astype(np.float64)
    for merged in (aggregate(each)["x"], totals_of(episodes)):
        np.testing.assert_allclose(merged["std"], together.std(axis=0), rtol=1e-9)


def test_merging_uses_float64_whatever_a_dataset_holds() -> None:
    episodes = float32_around(2013, 0.05)
    parts = [
        {"x": {n: v.astype(np.float32) for n, v in array_stats(values).items() if n != "count"}}
        for values in episodes
    ]
    for part, values in zip(parts, episodes, strict=True):
        part["x"]["count"] = np.array([len(values)])
    together = np.concatenate(episodes).astype(np.float64)
    std = aggregate(parts)["x"]["std"]
    assert std.dtype == np.float64
    np.testing.assert_allclose(std, together.std(axis=0), rtol=1e-3)  # its means are rounded


def test_whole_numbers_in_a_file_do_not_cut_those_of_later_episodes() -> None:
    totals = RunningStatistics()
    for low in (0, 0.75):
        said = {name: [low] for name in ("min", "max", "mean", "std")} | {"count": [4]}
        totals.add(as_stats(Path("stats.json"), {"x": said}), {}, {})
    assert totals.stats()["x"]["max"].tolist() == [0.75]


def test_one_grey_level_has_no_deviation() -> None:
    assert picture_stats(np.full((7, 9, 9, 3), 201, np.uint8))["std"].ravel().tolist() == [0] * 3


def test_integers_and_booleans_count_as_floats_that_hold_them() -> None:
    flags = array_stats(np.array([False, True, True, False]))
    assert flags["mean"].tolist() == [0.5]
    assert flags["q01"].tolist() == [-1.000000013351432e-10]  # float32's, as in LeRobot's files
    assert array_stats(np.arange(12))["q01"].tolist() == [-1e-10]


def test_a_feature_of_several_axes_is_reduced_to_its_last() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    stats = array_stats(values)
    assert stats["min"].tolist() == [0, 1, 2]
    assert stats["max"].tolist() == [21, 22, 23]
    assert stats["count"].tolist() == [2]


def test_one_frame_has_no_deviation_and_its_quantiles_are_itself() -> None:
    stats = array_stats(np.array([[2.0, 3.0]], np.float32))
    assert stats["std"].tolist() == [0, 0]
    assert all(stats[name].tolist() == [2, 3] for name in QUANTILES)
    table = array_stats(np.array([[[1, 5], [3, 5]]]))  # of two axes: its rows are pooled
    assert table["std"].tolist() == [1, 0]


@pytest.mark.parametrize("n_frames", [1, 50, 100, 500, 1000, 100_000])
def test_the_same_pictures_are_sampled(n_frames: int) -> None:
    count, first, last = GOLDEN["sample_indices"][str(n_frames)]
    chosen = sampled_frames(n_frames).tolist()
    assert (len(chosen), chosen[: len(first)], chosen[-len(last) :]) == (count, first, last)


def test_pictures_are_counted_as_lerobot_does() -> None:
    """Episode 0 of the golden dataset: frames of one grey level, 5 brighter each."""
    pictures = np.stack([np.full((64, 96, 3), 5 * i, np.uint8) for i in range(12)])
    stats = picture_stats(pictures)
    assert stats["mean"].shape == (3, 1, 1)
    assert stats["count"].tolist() == [12]
    expected = {
        "min": 0.0,
        "max": 0.21568627655506134,
        "mean": 0.10784313827753067,
        "q01": -3.921568744649079e-13,
        "q10": 0.01959294113458372,
        "q50": 0.09805098140940946,
        "q90": 0.19609333412320004,
        "q99": 0.2156810972924326,
    }
    assert {name: stats[name][0, 0, 0] for name in expected} == pytest.approx(expected, rel=2e-7)
    # LeRobot's own is 0.067662: it adds 73,728 squares up in float32. Sums are exact here.
    assert stats["std"].ravel() == pytest.approx(np.arange(0, 60, 5).std() / 255, rel=2e-7)


def test_large_pictures_are_thinned_and_long_episodes_sampled() -> None:
    pictures = np.zeros((300, 4, 450, 3), np.uint8)
    pictures[:, :, 1::3] = 200  # every third pixel of three is looked at: never these
    pictures[1] = 99  # not among the 100 of 300 that are looked at
    assert 1 not in sampled_frames(300)
    stats = picture_stats(pictures)
    assert stats["max"].ravel().tolist() == [0, 0, 0]
    assert stats["count"].tolist() == [100]


def test_episodes_are_aggregated_as_lerobot_does() -> None:
    parts = [{"x": array_stats(values)} for values in EPISODES]
    merged = aggregate(parts)["x"]
    for name, expected in GOLDEN["stats"]["aggregated"].items():
        assert merged[name].tolist() == pytest.approx(expected, rel=1e-7)  # its input was float32


def test_quantiles_of_several_episodes_are_those_of_the_data() -> None:
    generator = np.random.default_rng(0)
    episodes = [
        (generator.normal(size=(n, 2)) * scale).astype(np.float32)
        for n, scale in [(50, 0.01), (400, 1), (7, 300), (90, 2)]
    ]
    together = np.concatenate(episodes)
    width = np.ptp(together, axis=0) / 2**13
    merged = totals_of(episodes)
    for name, share in QUANTILES.items():
        exact = np.quantile(together, share, axis=0, method="inverted_cdf")
        assert (np.abs(merged[name] - exact) <= width).all(), name
    other_order = totals_of(episodes[::-1])
    assert all((other_order[name] == merged[name]).all() for name in QUANTILES)


def test_quantiles_of_a_single_episode_stay_lerobots() -> None:
    assert_as_lerobots(totals_of([EPISODES[0]]), GOLDEN["stats"]["ep1"])


@pytest.mark.parametrize("value", [0.0, -3.25, 1e-30, 7e20])
def test_a_number_that_never_changes_is_all_its_quantiles(value: float) -> None:
    spread = StreamingQuantiles()
    spread.add(np.array([value, value]))
    spread.add(np.array([value]))
    assert spread.quantiles() == pytest.approx([value] * len(QUANTILES), rel=1e-12)


def test_a_range_that_explodes_keeps_every_count() -> None:
    spread = StreamingQuantiles()
    for value in (1e-300, 1.0, -1e12, 1e300):
        spread.add(np.array([value]))
    assert spread.n == 4
    assert spread.quantiles()[-1] == pytest.approx(1e300, rel=1e-3)


def dark_and_bright() -> tuple[Array, Array]:
    generator = np.random.default_rng(1)
    dark = generator.integers(0, 40, (90, 8, 8, 3)).astype(np.uint8)
    bright = generator.integers(200, 256, (10, 8, 8, 3)).astype(np.uint8)
    return dark, bright


def test_quantiles_of_pictures_are_those_of_their_pixels() -> None:
    totals = RunningStatistics()
    for pictures in dark_and_bright():
        counts = PixelCounts()
        for picture in pictures:
            counts.add(picture)
        totals.add({"camera": counts.stats()}, {}, {"camera": counts.sampled()})
    found = totals.stats()["camera"]["q50"].ravel() * 255
    exact = np.quantile(np.concatenate(dark_and_bright()).reshape(-1, 3), 0.5, axis=0)
    assert np.abs(found - exact).max() <= 1


def test_pixels_that_nobody_counted_are_guessed_from_the_episodes_quantiles() -> None:
    totals = RunningStatistics()
    for pictures in dark_and_bright():
        totals.add({"camera": picture_stats(pictures)}, {}, {"camera": None})
    stats = totals.stats()["camera"]
    exact = np.quantile(np.concatenate(dark_and_bright()).reshape(-1, 3), 0.5, axis=0)
    assert np.abs(stats["q50"].ravel() * 255 - exact).max() <= 3
    assert stats["q99"].min() > 0.75
