"""What a dataset says of itself is read as LeRobot wrote it, and believed within bounds only."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proctor.datasets.format.episodes import (
    EpisodeMetadata,
    VideoSpan,
    read_episode_stats,
    read_episodes,
    write_episodes,
)
from proctor.datasets.format.info import DEFAULT_FEATURES, Info, data_file, video_file
from proctor.datasets.format.info_file import read_info, write_info
from proctor.datasets.format.schema import arrow_schema
from proctor.datasets.format.tables import read_stats, read_table, write_stats
from proctor.datasets.format.tasks import read_tasks, write_tasks
from proctor.errors import DatasetError
from tests.refusals import refuses
from tests.unit.datasets.making import GOLDEN, TOP, change, turn_old
from tests.unit.datasets.making import copied as copied_to


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return copied_to("video3ep", tmp_path / "set")


def test_info_is_what_lerobot_wrote() -> None:
    info = read_info(GOLDEN / "video3ep")
    assert (info.version, info.fps, info.robot_type) == ("v3.0", 10, "toy")
    assert (info.total_episodes, info.total_frames, info.total_tasks) == (3, 28, 2)
    assert info.video_keys == info.cameras == (TOP,)
    assert info.image_keys == ()
    assert info.columns[:5] == ("observation.state", "action", "next.reward", "next.done", "note")
    assert info.columns[5:] == tuple(DEFAULT_FEATURES)
    assert info.feature("observation.state").names == ("x", "y", "grip")
    assert info.feature(TOP).shape == info.shape(TOP) == (64, 96, 3)
    assert not info.is_depth(TOP)
    images = read_info(GOLDEN / "image1ep")
    assert images.image_keys == images.cameras == (TOP,)
    assert TOP in images.columns


def test_a_feature_that_is_not_there_is_named_with_the_nearest() -> None:
    info = read_info(GOLDEN / "video3ep")
    with refuses(DatasetError, "dataset.unknown-feature") as refused:
        info.feature("actoin")
    assert "'action'" in str(refused.value)
    with refuses(DatasetError, "dataset.not-observation-or-action"):
        info.feature("timestamp")


@pytest.mark.parametrize("name", ["video3ep", "image1ep"])
def test_info_is_written_as_it_was_read(name: str, tmp_path: Path) -> None:
    write_info(tmp_path, read_info(GOLDEN / name))
    text = (GOLDEN / name / "meta/info.json").read_text()
    assert (tmp_path / "meta/info.json").read_text() == text.rstrip("\n")
    assert [path.name for path in (tmp_path / "meta").iterdir()] == ["info.json"]


@pytest.mark.parametrize("name", ["video3ep", "image1ep"])
def test_the_schema_is_that_of_lerobots_tables(name: str) -> None:
    root = GOLDEN / name
    theirs = pq.read_schema(root / "data/chunk-000/file-000.parquet")
    ours = arrow_schema(read_info(root))
    assert ours.equals(theirs)
    said = [json.loads(s.metadata[b"huggingface"])["info"] for s in (ours, theirs)]
    assert said[0] == said[1]


def test_a_matrix_is_one_to_hugging_faces_library() -> None:
    matrix = {"dtype": "float32", "shape": [2, 3], "names": None}
    field = arrow_schema(Info(fps=10, features={"m": matrix})).field("m")
    assert field.type == pa.list_(pa.list_(pa.float32()))
    name = field.metadata[b"ARROW:extension:name"]
    assert name == b"datasets.features.features.Array2DExtensionType"
    assert json.loads(field.metadata[b"ARROW:extension:metadata"]) == [[2, 3], "float32"]


def test_paths_follow_the_templates_of_each_version() -> None:
    info = read_info(GOLDEN / "video3ep")
    root = Path("set")
    assert data_file(root, info, 1, 1234) == root / "data/chunk-001/file-1234.parquet"
    assert video_file(root, info, TOP, 0, 2) == root / f"videos/{TOP}/chunk-000/file-002.mp4"
    old = replace(
        info,
        version="v2.1",
        data_path="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    )
    assert data_file(root, old, 0, 7) == root / "data/chunk-000/episode_000007.parquet"


@pytest.mark.parametrize(
    ("said", "code", "datum"),
    [
        ({"codebase_version": "v1.6"}, "dataset.unknown-version", "v1.6"),
        ({"codebase_version": None}, "dataset.unknown-version", "None"),
        ({"fps": 0}, "dataset.invalid-info", "fps"),
        ({"fps": 29.97}, "dataset.invalid-info", "29.97"),
        ({"total_frames": -1}, "dataset.invalid-info", "total_frames"),
        ({"total_episodes": 10**15}, "dataset.invalid-info", "1000000000000000"),
        ({"chunks_size": True}, "dataset.invalid-info", "chunks_size"),
        ({"features": []}, "dataset.invalid-info", "features"),
        (
            {"features": {"a": {"dtype": "float99", "shape": [1]}}},
            "dataset.invalid-info",
            "float99",
        ),
        (
            {"features": {"a": {"dtype": "float32", "shape": [2**20, 2**20]}}},
            "dataset.invalid-info",
            "1099511627776",
        ),
        ({"features": {"../a": {"dtype": "float32", "shape": [1]}}}, "dataset.invalid-name", ".."),
        (
            {"features": {"..": {"dtype": "video", "shape": [4, 4, 3]}}},
            "dataset.invalid-name",
            "..",
        ),
        ({"features": {"a": {"dtype": "video", "shape": [4]}}}, "dataset.invalid-info", "'a'"),
        (
            {"features": {"task_index": {"dtype": "string", "shape": [1]}}},
            "dataset.invalid-info",
            "index",
        ),
        (
            {"features": {"index": {"dtype": "int64", "shape": [2]}}},
            "dataset.invalid-info",
            "index",
        ),
        (
            {"features": {"task_index": {"dtype": "int64", "shape": [1, 1]}}},
            "dataset.invalid-info",
            "index",
        ),
        (
            {"features": {"frame_index": {"dtype": "float32", "shape": [1]}}},
            "dataset.invalid-info",
            "frame_index",
        ),
        ({"data_path": "/etc/{file_index}"}, "dataset.invalid-info", "/etc"),
        ({"data_path": "data/../../{file_index}"}, "dataset.invalid-info", "data_path"),
        ({"data_path": "data/{file_index:0999999999d}"}, "dataset.invalid-info", "data_path"),
        ({"data_path": "data/{file_index.__class__}"}, "dataset.invalid-info", "data_path"),
        ({"data_path": "data/{file_index!r}"}, "dataset.invalid-info", "data_path"),
        ({"data_path": "data/{other}"}, "dataset.invalid-info", "data_path"),
        ({"data_path": "data/all.parquet"}, "dataset.invalid-info", "data_path"),
        ({"data_path": "data/{"}, "dataset.invalid-info", "data_path"),
        ({"video_path": "videos/{file_index}.mp4"}, "dataset.invalid-info", "video_path"),
        ({"video_path": None}, "dataset.invalid-info", "video_path"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    copied: Path, said: Any, code: str, datum: str
) -> None:
    change(copied, **said)
    with refuses(DatasetError, code) as refused:
        read_info(copied)
    assert "info.json" in str(refused.value)
    assert datum in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_without_a_dataset_is_said_to_be_one(tmp_path: Path) -> None:
    with refuses(DatasetError, "dataset.not-found") as refused:
        read_info(tmp_path)
    assert "meta/info.json" in str(refused.value)
    with refuses(DatasetError, "dataset.not-found"):
        read_info(tmp_path / "none")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"9" * 9000])
def test_an_info_file_of_anything_else_is_refused(copied: Path, content: bytes) -> None:
    (copied / "meta/info.json").write_bytes(content)
    with pytest.raises(DatasetError) as refused:
        read_info(copied)
    assert refused.value.code in ("dataset.invalid-json", "dataset.invalid-info")
    assert "info.json" in str(refused.value)


def test_nothing_is_written_that_no_reader_takes(tmp_path: Path) -> None:
    bad = Info(fps=10, features={"a/b": {"dtype": "float32", "shape": [1], "names": None}})
    with refuses(DatasetError, "dataset.invalid-name") as refused:
        write_info(tmp_path, bad)
    assert "'a/b'" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_tasks_are_read_by_their_index_and_written_with_pandas_note(tmp_path: Path) -> None:
    root = GOLDEN / "video3ep"
    tasks = read_tasks(root, read_info(root))
    assert tasks == ("push the block", "lift the cup")
    write_tasks(tmp_path, tasks)
    ours, theirs = (pq.read_table(r / "meta/tasks.parquet") for r in (tmp_path, root))
    assert ours.equals(theirs)
    notes = [json.loads(t.schema.metadata[b"pandas"]) for t in (ours, theirs)]
    assert notes[0]["index_columns"] == notes[1]["index_columns"] == ["task"]
    assert notes[0]["columns"] == notes[1]["columns"]


@pytest.mark.parametrize("indices", [[0, 0], [0, 2], [-1, 0], [0, 10**12]])
def test_tasks_that_do_not_count_are_refused(copied: Path, indices: list[int]) -> None:
    table = pa.table({"task_index": indices, "task": ["a", "b"]})
    pq.write_table(table, copied / "meta/tasks.parquet")
    with refuses(DatasetError, "dataset.task-numbering") as refused:
        read_tasks(copied, read_info(copied))
    assert "tasks.parquet" in str(refused.value)


def test_statistics_are_read_and_written_as_they_are(tmp_path: Path) -> None:
    stats = read_stats(GOLDEN / "video3ep")
    assert stats[TOP]["mean"].shape == (3, 1, 1)
    assert stats["action"]["count"].tolist() == [28]
    write_stats(tmp_path, stats)
    theirs = json.loads((GOLDEN / "video3ep/meta/stats.json").read_text())
    assert json.loads((tmp_path / "meta/stats.json").read_text()) == theirs
    assert read_stats(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("content", ['{"a": 1}', '{"a": {"min": "x"}}', '{"a": {"min": [[1], 2]}}'])
def test_statistics_of_anything_else_are_refused(copied: Path, content: str) -> None:
    (copied / "meta/stats.json").write_text(content)
    with refuses(DatasetError, "dataset.malformed-stats") as refused:
        read_stats(copied)
    assert "stats.json" in str(refused.value)


def test_episodes_are_what_lerobot_wrote() -> None:
    root = GOLDEN / "video3ep"
    episodes = read_episodes(root, read_info(root))
    assert [row.length for row in episodes] == [12, 7, 9]
    assert episodes[1] == EpisodeMetadata(
        index=1,
        tasks=("lift the cup",),
        length=7,
        data=(0, 0),
        from_index=12,
        to_index=19,
        videos={TOP: VideoSpan(0, 0, 1.2, 1.9)},
    )


def test_episodes_are_written_as_lerobot_writes_them(tmp_path: Path) -> None:
    root = GOLDEN / "video3ep"
    info = read_info(root)
    write_episodes(tmp_path, list(read_episodes(root, info)), read_episode_stats(root, info), 0, 0)
    name = "meta/episodes/chunk-000/file-000.parquet"
    ours, theirs = pq.read_table(tmp_path / name), pq.read_table(root / name)
    assert ours.schema.equals(theirs.schema)
    assert ours.equals(theirs)


def test_only_the_episodes_that_info_counts_are_there(copied: Path) -> None:
    change(copied, total_episodes=2)
    (copied / "meta/episodes/chunk-000/file-001.parquet").write_bytes(b"cut")  # left by a kill
    info = read_info(copied)
    assert len(read_episodes(copied, info)) == len(read_episode_stats(copied, info)) == 2
    change(copied, total_episodes=4)
    with refuses(DatasetError, "dataset.damaged-file") as refused:
        read_episodes(copied, read_info(copied))
    assert "file-001.parquet" in str(refused.value)
    (copied / "meta/episodes/chunk-000/file-001.parquet").unlink()
    with refuses(DatasetError, "dataset.missing-episodes") as refused:
        read_episodes(copied, read_info(copied))
    assert "3 of the 4" in str(refused.value)


def test_episodes_in_several_row_groups_are_read(copied: Path) -> None:
    """As LeRobot writes them: ten to a group."""
    path = copied / "meta/episodes/chunk-000/file-000.parquet"
    before = list(read_episodes(copied, read_info(copied)))
    pq.write_table(pq.read_table(path), path, row_group_size=1)
    assert list(read_episodes(copied, read_info(copied))) == before
    assert len(read_episode_stats(copied, read_info(copied))) == 3


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mean", pa.array([[1.0, 2.0], [1.0], [1.0, 2.0]])),
        ("mean", pa.array([[1.0, 2.0], None, [1.0, 2.0]])),
        ("count", pa.array([["a"], ["b"], ["c"]])),
    ],
)
def test_statistics_of_episodes_that_do_not_go_together_are_refused(
    copied: Path, name: str, values: pa.Array
) -> None:
    path = copied / "meta/episodes/chunk-000/file-000.parquet"
    table, name = pq.read_table(path), f"stats/action/{name}"
    pq.write_table(table.set_column(table.column_names.index(name), name, values), path)
    with refuses(DatasetError, "dataset.malformed-stats"):
        read_episode_stats(copied, read_info(copied))


def test_files_are_read_in_the_order_of_their_numbers(copied: Path) -> None:
    info = read_info(copied)
    rows, stats = list(read_episodes(copied, info)), read_episode_stats(copied, info)
    shutil.rmtree(copied / "meta/episodes")
    for i, place in enumerate([(2, 0), (2, 1000), (1000, 0)]):
        write_episodes(copied, rows[i : i + 1], stats[i : i + 1], *place)
    assert list(read_episodes(copied, info)) == rows


@pytest.mark.parametrize(
    ("column", "values", "code"),
    [
        ("length", pa.array([-1, 2, 3]), "dataset.out-of-range"),
        ("length", pa.array([2**50, 2, 3]), "dataset.out-of-range"),
        ("length", pa.array([None, 2, 3], pa.int64()), "dataset.wrong-type"),
        ("length", pa.array(["a", "b", "c"]), "dataset.wrong-type"),
        ("episode_index", pa.array([0, 2, 1]), "dataset.episode-order"),
        (f"videos/{TOP}/from_timestamp", pa.array([0.0, np.nan, 1.0]), "dataset.out-of-range"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    copied: Path, column: str, values: pa.Array, code: str
) -> None:
    path = copied / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(column), column, values), path)
    with refuses(DatasetError, code):
        read_episodes(copied, read_info(copied))


def test_a_small_file_cannot_claim_to_be_a_large_table(copied: Path) -> None:
    path = copied / "meta/tasks.parquet"
    rows = 10_000_000  # of nulls: a few kilobytes
    table = pa.table(
        {"task_index": pa.nulls(rows, pa.int64()), "task": pa.nulls(rows, pa.string())}
    )
    pq.write_table(table, path)
    assert path.stat().st_size < 2**20
    with refuses(DatasetError, "dataset.damaged-file"):
        read_tasks(copied, read_info(copied))


@pytest.mark.parametrize("version", ["v2.1", "v2.0"])
def test_older_versions_are_read_as_they_lie(copied: Path, version: str) -> None:
    info = turn_old(copied, version)
    assert info.is_v2
    assert info.fps == 10
    assert read_tasks(copied, info) == ("push the block", "lift the cup")
    row = read_episodes(copied, info)[2]
    assert (row.length, row.from_index, row.to_index, row.data) == (9, 19, 28, (0, 2))
    assert row.videos == {TOP: VideoSpan(0, 2, 0.0, 0.9)}
    found = video_file(copied, info, TOP, 0, 2)
    assert found == copied / f"videos/chunk-000/{TOP}/episode_000002.mp4"
    assert read_episode_stats(copied, info) == []
    action = {"min": [0.5], "max": [1.0], "mean": [0.7], "std": [0.1], "count": [7]}
    lines = [{"episode_index": i, "stats": {"action": action}} for i in range(3)]
    (copied / "meta/episodes_stats.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read_episode_stats(copied, info)[2]["action"]["count"].tolist() == [7]


@pytest.mark.parametrize("line", ["x", "[]", '{"episode_index": "0"}', '{"episode_index": 1e99}'])
def test_lines_of_older_versions_that_cannot_be_are_refused(copied: Path, line: str) -> None:
    info = turn_old(copied)
    (copied / "meta/episodes.jsonl").write_text(line)
    with pytest.raises(DatasetError) as refused:
        read_episodes(copied, info)
    assert refused.value.code in ("dataset.invalid-json", "dataset.malformed-metadata")
    assert "episodes.jsonl" in str(refused.value)


def test_texts_in_lists_and_pictures_are_read_from_several_row_groups(tmp_path: Path) -> None:
    """As LeRobot writes them: ten episodes, or the frames of one, are a row group."""
    tasks = [["push"], ["lift", "push"], ["push"]]
    files = [{"bytes": bytes([i]), "path": f"{i}.png"} for i in range(3)]
    table = pa.table(
        {
            "tasks": tasks,
            "note": ["a", "b", "a"],
            "picture": files,
            "said": [[{"role": "user"}], [], [{"role": "robot"}]],
        }
    )
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=2)
    found = read_table(tmp_path / "table.parquet")
    assert found.to_pylist() == table.to_pylist()
