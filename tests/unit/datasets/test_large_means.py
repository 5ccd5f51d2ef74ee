"""Deviations that are small beside the mean: LeRobot's float32 formula loses them, we do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from proctor import datasets
from proctor.datasets.check import check
from proctor.datasets.checks.findings import FindingLevel
from proctor.datasets.edit import operations
from proctor.datasets.edit.build import build, edit
from proctor.datasets.edit.destination import in_place_destination, new_destination
from proctor.datasets.edit.edit_plan import open_source
from proctor.datasets.format.episode_stats import read_episode_stats
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tables import read_stats
from proctor.datasets.numbers.statistics import aggregate
from proctor.datasets.writer import DatasetWriter
from proctor.features import Array
from tests.unit.datasets.damage import EPISODES, STATS, column_with, json_with

STATE = "observation.state"
FEATURES = {
    STATE: {"dtype": "float32", "shape": [3], "names": ["pressure_hPa", "x", "constant"]},
    "action": {"dtype": "float32", "shape": [2], "names": None},
}


def pressures(n_frames: int, seed: int) -> Array:
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=(n_frames, 3)) * [0.05, 1, 0]
    return (np.array([2013, 0, 7.3]) + noise).astype(np.float32)


def add_episodes(writer: DatasetWriter, seeds: range) -> None:
    for seed in seeds:
        for row in pressures(50, seed):
            writer.add_frame({STATE: row, "action": row[:2] - 2013}, task="hold still")
        writer.end_episode()


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Six episodes of a sensor around 2013 that moves by 0.05."""
    with DatasetWriter.create(tmp_path / "recorded", fps=10, features=FEATURES) as writer:
        add_episodes(writer, range(6))
    return tmp_path / "recorded"


def float32_std(values: Array) -> list[float]:
    """Return what LeRobot's formula has for an episode."""
    variance = (values**2).mean(axis=0) - values.mean(axis=0) ** 2
    return [float(x) for x in np.sqrt(np.maximum(0, variance))]


@pytest.fixture
def lerobots(recorded: Path) -> Path:
    """The same with the deviations that LeRobot would have written."""
    stds = [float32_std(pressures(50, seed)) for seed in range(6)]

    def change(values: list[list[float]]) -> None:
        values[:] = stds

    column_with(EPISODES, f"stats/{STATE}/std", change)(recorded)
    merged = aggregate(read_episode_stats(recorded, read_info(recorded)))[STATE]["std"].tolist()
    json_with(STATS, lambda said: said[STATE].update(std=merged))(recorded)
    assert merged[0] > 5 * 0.05
    return recorded


def assert_stds_of_the_data(root: Path) -> None:
    dataset = datasets.open(root)
    exact = dataset.batch(range(len(dataset)))[STATE].astype(np.float64)
    np.testing.assert_allclose(dataset.stats[STATE]["std"], exact.std(axis=0), rtol=1e-9)
    np.testing.assert_allclose(dataset.stats[STATE]["mean"], exact.mean(axis=0), rtol=1e-12)


def test_recording_writes_the_deviations_of_the_data(recorded: Path) -> None:
    assert_stds_of_the_data(recorded)
    assert check(recorded).findings == ()


def test_check_names_the_feature_and_the_episodes_whose_deviations_are_off(lerobots: Path) -> None:
    whole, each = sorted(check(lerobots).findings, key=lambda finding: finding.level.value)
    assert (whole.level, whole.kind) == (FindingLevel.ERROR, "stats.differ")
    assert f"{STATE}: std of component 0 is 0.5" in whole.what
    assert "(6 episodes)" in whole.what
    assert (each.level, each.kind) == (FindingLevel.WARNING, "stats.episodes")
    assert "episodes 0, 1, 2, 3, 4 and 1 more" in each.where


def test_a_deviation_that_is_slightly_off_is_a_warning(recorded: Path) -> None:
    said = read_stats(recorded)[STATE]["std"] * [1.05, 1, 1]
    json_with(STATS, lambda stats: stats[STATE].update(std=said.tolist()))(recorded)
    (finding,) = check(recorded).findings
    assert (finding.level, finding.kind) == (FindingLevel.WARNING, "stats.differ")


def test_a_mean_that_is_off_by_many_deviations_is_an_error(recorded: Path) -> None:
    said = read_stats(recorded)[STATE]["mean"] + [1, 0, 0]
    json_with(STATS, lambda stats: stats[STATE].update(mean=said.tolist()))(recorded)
    (finding,) = check(recorded).findings
    assert (finding.level, finding.kind) == (FindingLevel.ERROR, "stats.differ")


def test_what_float32_leaves_of_a_constants_deviation_is_no_finding(recorded: Path) -> None:
    said = read_stats(recorded)[STATE]["std"] + [0, 0, 7.3e-3]
    json_with(STATS, lambda stats: stats[STATE].update(std=said.tolist()))(recorded)
    assert check(recorded).findings == ()


def test_data_stats_mends_the_deviations(lerobots: Path) -> None:
    edit(
        lerobots,
        in_place_destination(lerobots),
        lambda s: operations.recompute_statistics(s, pictures=False),
    )
    assert_stds_of_the_data(lerobots)
    assert check(lerobots).findings == ()


def deleted(root: Path, out: Path) -> None:
    build(operations.delete(open_source(root), [1]), new_destination(out))


def split(root: Path, out: Path) -> None:
    build(
        operations.split(open_source(root), {"train": 0.5, "val": 0.5})["val"], new_destination(out)
    )


def merged(root: Path, out: Path) -> None:
    build(operations.merge([open_source(root), open_source(root)]), new_destination(out))


@pytest.mark.parametrize("make", [deleted, split, merged])
def test_edits_do_not_take_over_deviations_that_are_off(
    make: Callable[[Path, Path], None], lerobots: Path, tmp_path: Path
) -> None:
    make(lerobots, tmp_path / "out")
    assert_stds_of_the_data(tmp_path / "out")
    assert check(tmp_path / "out").findings == ()


def test_a_resumed_recording_has_the_deviations_of_all_its_data(lerobots: Path) -> None:
    with DatasetWriter.resume(lerobots) as writer:
        add_episodes(writer, range(6, 8))
    assert_stds_of_the_data(lerobots)
