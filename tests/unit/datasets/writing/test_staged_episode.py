"""A take is one episode on its own: complete before anybody hears of it, or nothing at all."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from proctor.datasets.format.info import DEFAULT_FEATURES, Info
from proctor.datasets.format.schema import arrow_type
from proctor.datasets.frames.video import FrameReader, FrameRequest, probe
from proctor.datasets.numbers.arrays import as_arrow
from proctor.datasets.numbers.columns import column_to_array
from proctor.datasets.numbers.statistics import array_stats
from proctor.datasets.writing.staged_episode import (
    TASK,
    StagedEpisode,
    StagedEpisodeWriter,
    read_staged_episode,
)
from proctor.errors import DatasetError
from proctor.features import Array
from tests.refusals import refuses
from tests.unit.datasets.writing.toy import AXES, FAST, INFO, frame, picture


def recorded(folder: Path, n: int = 5) -> StagedEpisode:
    writer = StagedEpisodeWriter(folder, INFO, FAST)
    for i in range(n):
        writer.add_frame(frame(i), "push" if i < 3 else "lift")
    return writer.finish()


def decoded(png: bytes) -> Array:
    import av

    return next(av.CodecContext.create("png", "r").decode(av.Packet(png)).__iter__()).to_ndarray(
        format="rgb24"
    )


def test_a_finished_take_has_everything_and_travels_by_its_path(tmp_path: Path) -> None:
    take = pickle.loads(pickle.dumps(recorded(tmp_path / "take")))
    assert read_staged_episode(tmp_path / "take") == take
    assert (take.length, take.tasks) == (5, ("push", "lift"))
    table = take.table()
    assert table[TASK].to_pylist() == ["push"] * 3 + ["lift"] * 2
    assert table["note"].to_pylist() == [f"step {i}" for i in range(5)]
    grid = column_to_array(take.folder, INFO, "grid", table["grid"])
    assert (grid == np.stack([frame(i)["grid"] for i in range(5)])).all()
    wrist = table["observation.images.wrist"].to_pylist()
    assert all((decoded(wrist[i]["bytes"]) == picture(i)).all() for i in range(5))
    video = take.video("observation.images.top")
    assert probe(video).n_frames == 5
    seen = FrameReader().read([FrameRequest(video, 3, 10)])
    assert abs(int(seen.mean()) - 30) <= 3


def test_its_statistics_are_those_of_its_frames(tmp_path: Path) -> None:
    stats, pixels = recorded(tmp_path / "take").stats()
    states = np.stack([frame(i)["observation.state"] for i in range(5)])
    expected = array_stats(states)
    assert all((stats["observation.state"][name] == expected[name]).all() for name in expected)
    assert "note" not in stats
    assert stats["observation.images.top"]["max"].ravel()[0] == pytest.approx(40 / 255)
    assert pixels["observation.images.top"][0, 40] == 32 * 48
    assert stats["grid"]["count"].tolist() == [5]


def test_more_frames_than_are_held_in_memory_keep_their_order(tmp_path: Path) -> None:
    info = Info(fps=10, features={"x": {"dtype": "float64", "shape": [1]}} | DEFAULT_FEATURES)
    writer = StagedEpisodeWriter(tmp_path / "take", info, FAST)
    for i in range(150):
        writer.add_frame({"x": np.float64(i)}, "count")
    column = writer.finish().table()["x"]
    assert column.to_pylist() == list(range(150))


def test_a_discarded_take_leaves_nothing(tmp_path: Path) -> None:
    writer = StagedEpisodeWriter(tmp_path / "take", INFO, FAST)
    writer.add_frame(frame(0), "push")
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_take_without_frames_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with refuses(DatasetError, "dataset.empty-episode"):
        StagedEpisodeWriter(tmp_path / "take", INFO, FAST).finish()
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_finished_is_no_take(tmp_path: Path) -> None:
    StagedEpisodeWriter(tmp_path / "take", INFO, FAST).add_frame(frame(0), "push")
    with refuses(DatasetError, "dataset.no-staged-episode"):
        read_staged_episode(tmp_path / "take")


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    with refuses(DatasetError, "dataset.exists"):
        StagedEpisodeWriter(tmp_path, INFO, FAST)


@pytest.mark.parametrize(
    ("change", "code", "datum"),
    [
        ({"observation.state": None}, "dataset.missing-feature", "observation.state"),
        ({"grid": None, "note": None}, "dataset.missing-feature", "grid"),
        ({"observation.stat": 1}, "dataset.unknown-feature", "'observation.state'"),
        ({"timestamp": 1.0}, "dataset.default-feature", "timestamp"),
        (
            {"observation.state": np.zeros(3)},
            "dataset.wrong-value",
            "float64 [3]",
        ),
        (
            {"observation.images.top": np.zeros((3, 32, 48), np.uint8)},
            "dataset.wrong-value",
            "[3, 32, 48]",
        ),
        (
            {"observation.state": np.array([0, np.nan, 0], np.float32)},
            "dataset.not-finite",
            "nan at [1]",
        ),
        ({"note": 3}, "dataset.wrong-value", "note"),
    ],
)
def test_a_bad_frame_is_one_line_and_changes_nothing(
    tmp_path: Path, change: dict[str, Any], code: str, datum: str
) -> None:
    writer = StagedEpisodeWriter(tmp_path / "take", INFO, FAST)
    writer.add_frame(frame(0), "push")
    bad = {key: value for key, value in (frame(1) | change).items() if value is not None}
    with refuses(DatasetError, code) as refused:
        writer.add_frame(bad, "push")
    assert datum in str(refused.value)
    assert "\n" not in str(refused.value)
    writer.add_frame(frame(1), "push")
    take = writer.finish()
    assert take.length == probe(take.video("observation.images.top")).n_frames == 2


def test_what_cannot_be_recorded_is_said_before_anything_is(tmp_path: Path) -> None:
    grey = {"dtype": "video", "shape": [8, 8, 1], "names": AXES}
    info = Info(fps=10, features={"observation.images.grey": grey} | DEFAULT_FEATURES)
    with refuses(DatasetError, "dataset.unsupported-feature") as refused:
        StagedEpisodeWriter(tmp_path / "take", info, FAST)
    assert "observation.images.grey" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [[1], [4], [2, 3], [2, 3, 4]])
def test_arrays_become_columns_and_come_back(shape: list[int]) -> None:
    info = Info(fps=10, features={"x": {"dtype": "float32", "shape": shape}})
    rows = [np.random.default_rng(i).normal(size=shape).astype(np.float32) for i in range(3)]
    column = pa.chunked_array([as_arrow(rows, arrow_type(info, "x"))])
    found = column_to_array(Path("x"), info, "x", column)
    assert (found.reshape(3, *shape) == np.stack(rows)).all()
