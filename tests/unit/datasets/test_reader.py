"""A dataset is read as it lies: every frame, in every version, alone, in batches and in windows."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proctor import datasets
from proctor.datasets.cache_settings import CacheKind, FrameCacheSettings
from proctor.datasets.format.episodes import (
    VideoSpan,
    read_episode_stats,
    read_episodes,
    write_episodes,
)
from proctor.datasets.format.info import VIDEO_PATH
from proctor.datasets.format.info_file import read_info, write_info
from proctor.datasets.frames.depth import DepthEncoder, DepthScale, DepthUnit
from proctor.errors import DatasetError
from proctor.features import FeatureKind
from tests.refusals import refuses
from tests.unit.datasets.making import (
    GOLDEN,
    TOP,
    assert_same,
    change,
    copied,
    make_numbers,
    turn_old,
)

DELTAS = {
    "action": [0.0, 0.1, 0.2],
    "observation.state": [-0.1, 0.0],
    "next.reward": [0.3],
    TOP: [-0.2, 0.0],
}


def test_frames_are_what_the_tables_and_the_video_hold() -> None:
    ds = datasets.open(GOLDEN / "video3ep")
    table = pq.read_table(GOLDEN / "video3ep/data/chunk-000/file-000.parquet").to_pylist()
    assert len(ds) == len(table) == 28
    for i, row in enumerate(table):
        item = ds[i]
        assert item.keys() == {*row, TOP, "task"}
        for key, value in row.items():
            assert np.array_equal(item[key], np.asarray(value, np.asarray(item[key]).dtype)), key
        assert item["task"] == ("push the block", "lift the cup")[row["task_index"]]
        assert item[TOP].shape == (64, 96, 3)
        assert item[TOP].dtype == np.uint8


def test_every_picture_is_its_own_frames() -> None:
    """The golden video is a grey that grows with the frame: no two frames have the same."""
    pictures = datasets.open(GOLDEN / "video3ep").batch(range(28))[TOP]
    greys = pictures.mean(axis=(1, 2, 3))
    stats = datasets.open(GOLDEN / "video3ep").stats[TOP]
    for episode, frames in enumerate(((0, 12), (12, 19), (19, 28))):
        assert (np.diff(greys[slice(*frames)]) > 3).all(), episode
    assert abs(greys.mean() / 255 - stats["mean"].mean()) < 2 / 255
    assert len(set(greys.round())) == 28


def test_one_number_has_no_axis_and_batches_stack() -> None:
    ds = datasets.open(GOLDEN / "video3ep")
    item, batch = ds[3], ds.batch([3, 0, 3])
    assert item["timestamp"].shape == item["next.done"].shape == ()
    assert batch["timestamp"].shape == (3,)
    assert batch["action"].shape == (3, 2)
    assert batch["note"] == ["n3", "n0", "n3"]
    for place in (0, 2):
        assert_same({key: value[place] for key, value in batch.items()}, item)
    assert_same(ds[-1], ds[27])


@pytest.mark.parametrize("episodes", [None, [1], [2, 0], [2, 1, 1]])
def test_windows_stay_inside_their_episode_also_of_some_episodes(
    episodes: list[int] | None,
) -> None:
    """Against the simplest thing that could be right: one frame at a time, clamped by hand."""
    whole = datasets.open(GOLDEN / "video3ep")
    ds = datasets.open(GOLDEN / "video3ep", episodes=episodes, delta_timestamps=DELTAS)
    bounds = [(0, 12), (12, 19), (19, 28)]
    chosen = sorted(set(episodes or [0, 1, 2]))
    expected = [(i, bounds[e]) for e in chosen for i in range(*bounds[e])]
    assert len(ds) == len(expected)
    single = whole.batch(range(28))
    batch = ds.batch(range(len(ds)))
    for position, (index, (first, end)) in enumerate(expected):
        for key, seconds in DELTAS.items():
            at = [index + round(second * 10) for second in seconds]
            inside = [min(max(i, first), end - 1) for i in at]
            pad = [i != j for i, j in zip(at, inside, strict=True)]
            assert batch[f"{key}_is_pad"][position].tolist() == pad
            assert np.array_equal(batch[key][position], single[key][inside]), (position, key)
        assert batch["index"][position] == index
        assert batch["task"][position] == single["task"][index]


def test_one_moment_keeps_its_axis_in_tables_and_loses_it_in_videos(tmp_path: Path) -> None:
    deltas = {TOP: [0.0], "action": [0.0]}
    video = datasets.open(GOLDEN / "video3ep", delta_timestamps=deltas)[0]
    assert video["action"].shape == (1, 2)
    assert video[TOP].shape == (64, 96, 3)
    assert video[f"{TOP}_is_pad"].tolist() == video["action_is_pad"].tolist() == [False]
    images = datasets.open(GOLDEN / "image1ep", delta_timestamps=deltas)[0]
    assert images[TOP].shape == (1, 64, 96, 3)


@pytest.mark.parametrize(
    ("deltas", "code", "datum"),
    [
        ({"actoin": [0.0]}, "dataset.unknown-feature", "'action'"),
        ({"action": [0.05]}, "dataset.invalid-delta-timestamps", "0.05 s"),
        ({"action": [float("nan")]}, "dataset.invalid-delta-timestamps", "nan s"),
        ({"action": []}, "dataset.invalid-delta-timestamps", "action"),
    ],
)
def test_windows_that_cannot_be_are_refused(deltas: Any, code: str, datum: str) -> None:
    with refuses(DatasetError, code) as refused:
        datasets.open(GOLDEN / "video3ep", delta_timestamps=deltas)
    assert datum in str(refused.value)


def test_pictures_in_tables_are_their_png_files() -> None:
    image = pytest.importorskip("PIL.Image")
    ds = datasets.open(GOLDEN / "image1ep", delta_timestamps={TOP: [-0.1, 0.0]})
    files = pq.read_table(GOLDEN / "image1ep/data/chunk-000/file-000.parquet")[TOP].to_pylist()
    pixels = [np.asarray(image.open(io.BytesIO(file["bytes"]))) for file in files]
    for i in range(5):
        assert np.array_equal(ds[i][TOP], [pixels[max(0, i - 1)], pixels[i]])


@pytest.mark.parametrize("version", ["v2.1", "v2.0"])
def test_older_versions_give_the_same_frames_without_conversion(
    tmp_path: Path, version: str
) -> None:
    root = copied("video3ep", tmp_path / "set")
    new = datasets.open(GOLDEN / "video3ep", delta_timestamps=DELTAS, episodes=[0, 2])
    before = new.batch(range(len(new)))
    turn_old(root, version)
    files = sorted(path for path in root.rglob("*"))
    old = datasets.open(root, delta_timestamps=DELTAS, episodes=[0, 2])
    assert old.info.version == version
    assert_same(old.batch(range(len(old))), before)
    assert old.interface.features == new.interface.features
    assert sorted(path for path in root.rglob("*")) == files


def test_statistics_of_v21_come_from_its_episodes(tmp_path: Path) -> None:
    root = copied("video3ep", tmp_path / "set")
    per_episode = read_episode_stats(root, read_info(root))
    turn_old(root)
    (root / "meta/stats.json").unlink()
    lines = [
        {
            "episode_index": i,
            "stats": {k: {n: v.tolist() for n, v in e.items()} for k, e in stats.items()},
        }
        for i, stats in enumerate(per_episode)
    ]
    (root / "meta/episodes_stats.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = datasets.open(root).stats["action"]
    theirs = datasets.open(GOLDEN / "video3ep").stats["action"]
    for name in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(found[name], theirs[name], rtol=1e-7)


def test_many_tables_matrices_and_every_number_in_its_place(tmp_path: Path) -> None:
    lengths = [5, 1, 3, 4, 2]
    root = make_numbers(tmp_path / "set", lengths)
    ds = datasets.open(root)
    order = np.random.default_rng(0).permutation(15)
    batch = ds.batch(order)
    assert batch["grid"].shape == (15, 2, 2)
    assert np.array_equal(batch["index"], order)
    assert np.array_equal(batch["grid"][:, 1, 1], order + 3)
    assert np.array_equal(batch["action"], order[:, None] + np.array([0.1, 0.2]))
    assert batch["action"].dtype == np.float64
    assert batch["task"] == ["ab"[i % 2] for i in order]
    some = datasets.open(root, episodes=[1, 4])
    (root / "data/chunk-000/file-001.parquet").unlink()  # of episodes 2 and 3: not looked at
    assert some.batch(range(3))["index"].tolist() == [5, 13, 14]
    assert some.spans.tolist() == [[0, 1], [1, 3]]


def test_lists_without_a_fixed_length_are_read_too(tmp_path: Path) -> None:
    root = make_numbers(tmp_path / "set", [4])
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    before = datasets.open(root).batch(range(4))
    loose = pa.array(table["observation.state"].to_pylist(), pa.list_(pa.float64()))
    pq.write_table(table.set_column(0, "observation.state", loose), path)
    assert_same(datasets.open(root).batch(range(4)), before)


def test_what_was_said_comes_as_it_is(tmp_path: Path) -> None:
    root = make_numbers(tmp_path / "set", [2])
    path = root / "data/chunk-000/file-000.parquet"
    said = [[{"role": "user", "content": "lift"}], []]
    pq.write_table(pq.read_table(path).append_column("language_events", pa.array(said)), path)
    ds = datasets.open(root)
    entry = {"dtype": "language", "shape": [1], "names": None}
    change(root, features={**ds.info.features, "language_events": entry})
    ds = datasets.open(root)
    assert ds.batch([0, 1])["language_events"] == said
    assert ds[0]["language_events"] == said[0]


def test_only_some_features_are_read_where_that_is_asked() -> None:
    ds = datasets.open(GOLDEN / "video3ep", delta_timestamps={"action": [0.0, 0.1]})
    batch = ds.batch([1], keys=["action"])
    assert batch.keys() == {"action", "action_is_pad", "task"}


def test_the_interface_is_that_of_a_benchmark() -> None:
    found = datasets.open(GOLDEN / "video3ep").interface
    assert list(found.features) == ["observation.state", TOP]
    assert found.features[TOP].kind is FeatureKind.VISUAL
    assert (found.action.size, found.fps) == (2, 10)


def test_a_dataset_travels_to_other_processes(tmp_path: Path) -> None:
    ds = datasets.open(GOLDEN / "video3ep", episodes=[1], delta_timestamps=DELTAS)
    before = ds.batch([0, 6])
    assert_same(pickle.loads(pickle.dumps(ds)).batch([0, 6]), before)


def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every text might be too long to be written out as often as it is said."""
    monkeypatch.setattr("proctor.datasets.format.tables._most_text", lambda *_: 2**60)


@pytest.mark.parametrize("is_small", [False, True])
def test_tables_of_many_row_groups_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    root = copied("image1ep", tmp_path / "set")
    path = root / "data/chunk-000/file-000.parquet"
    said = [[{"role": "user", "content": f"lift {i}"}] for i in range(5)]
    table = pq.read_table(path).append_column("language_events", pa.array(said))
    table = table.append_column("note", pa.array(["a", "b", "a", "c", "a"]))
    pq.write_table(table, path, row_group_size=2)
    ds = datasets.open(root)
    language = {"dtype": "language", "shape": [1], "names": None}
    note = {"dtype": "string", "shape": [1], "names": None}
    change(root, features={**ds.info.features, "language_events": language, "note": note})
    if is_small:
        small_room(monkeypatch)
    ds = datasets.open(root)
    batch = ds.batch([4, 3, 0])
    assert batch["note"] == ["a", "c", "a"]
    assert batch["language_events"] == [said[4], said[3], said[0]]
    before = datasets.open(GOLDEN / "image1ep").batch([4, 3, 0])
    assert_same({key: batch[key] for key in before}, before)


def test_importing_the_package_needs_no_pyarrow() -> None:
    code = "import sys, proctor.datasets; assert not {'pyarrow', 'av'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_depth_is_read_in_millimetres(tmp_path: Path) -> None:
    root = make_numbers(tmp_path / "set", [3, 2])
    key, scale = "observation.images.depth", DepthScale()
    metres = np.linspace(0.5, 3.0, 5 * 16 * 16, dtype=np.float32).reshape(5, 16, 16, 1)
    video = root / f"videos/{key}/chunk-000/file-000.mp4"
    video.parent.mkdir(parents=True)
    encoder = DepthEncoder(video, 10, 16, 16)
    for picture in metres:
        encoder.add(scale.encode(picture))
    encoder.finish()
    info = read_info(root)
    block = scale.info_block(16, 16, 10, DepthUnit.METRE)
    camera = {"dtype": "video", "shape": [16, 16, 1], "names": ["height", "width", "channels"]}
    rows = [
        replace(row, videos={key: VideoSpan(0, 0, row.from_index / 10, row.to_index / 10)})
        for row in read_episodes(root, info)
    ]
    write_episodes(root, rows, [{}, {}], 0, 0)
    features = {key: {**camera, "info": block}, **info.features}
    write_info(root, replace(info, features=features, video_path=VIDEO_PATH))
    batch = datasets.open(root, episodes=[1]).batch([0, 1])
    assert (batch[key].dtype, batch[key].shape) == (np.float32, (2, 16, 16, 1))
    np.testing.assert_allclose(batch[key], metres[3:] * 1000, rtol=2e-3)
    cached = datasets.open(root, episodes=[1], cache=FrameCacheSettings(CacheKind.RAM))
    assert cached.cached_images(key, 0) is None
    cached.fill_cache()
    np.testing.assert_array_equal(cached.cached_images(key, 0), batch[key])
