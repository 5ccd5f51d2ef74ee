"""A dataset that is not as it says is one line, which names the file."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proctor import datasets
from proctor.cli import main
from proctor.datasets.cache_settings import FrameCacheSettings
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import in_place_destination
from proctor.datasets.edit.operations import delete
from proctor.datasets.format import info_file, tables
from proctor.datasets.format.tables import damaged_table_error
from proctor.datasets.frames.decoder import damaged_video_error
from proctor.datasets.reader import open_handle
from proctor.errors import CannotRead, DatasetError
from tests.refusals import refuses
from tests.unit.datasets.making import GOLDEN, TOP, change, copied, make_numbers


def test_an_info_without_a_column_that_all_have_is_one_line(tmp_path: Path) -> None:
    root = copied("video3ep", tmp_path / "set")
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    del info["features"]["episode_index"]
    path.write_text(json.dumps(info))
    with refuses(DatasetError, "dataset.unknown-feature") as refused:
        datasets.open(root)[0]
    assert "episode_index" in str(refused.value)


@pytest.mark.parametrize("position", [28, -29])
def test_a_frame_out_of_range_is_said_with_the_range(position: int) -> None:
    ds = datasets.open(GOLDEN / "video3ep")
    with pytest.raises(IndexError, match=rf"frame {position} is not in .* \(0 to 27\)"):
        ds[position]
    with pytest.raises(IndexError):
        ds.batch([0, position])


def test_an_episode_out_of_range_is_said_with_the_range() -> None:
    with refuses(DatasetError, "dataset.unknown-episode") as refused:
        datasets.open(GOLDEN / "video3ep", episodes=[0, 3])
    assert "episode 3" in str(refused.value)


def test_a_missing_video_is_named(tmp_path: Path) -> None:
    root = copied("video3ep", tmp_path / "set")
    path = root / f"videos/{TOP}/chunk-000/file-000.mp4"
    path.unlink()
    with refuses(DatasetError, "video.missing") as refused:
        datasets.open(root)[0]
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "episodes", "keys", "is_refused"),
    [
        (f"videos/{TOP}/chunk-000/file-000.mp4", [0], [TOP], True),
        (f"videos/{TOP}/chunk-000/file-000.mp4", [0], ["action"], False),
        ("data/chunk-000/file-001.parquet", [2], [], True),
        ("data/chunk-000/file-001.parquet", [0, 1], [], False),
    ],
)
def test_files_are_required_of_the_episodes_and_cameras_that_are_read(
    tmp_path: Path, name: str, episodes: list[int], keys: list[str], is_refused: bool
) -> None:
    root = tmp_path / "set"
    if name.startswith("data"):
        make_numbers(root, [4, 4, 4], per_file=2)
    else:
        copied("video3ep", root)
    (root / name).unlink()
    handle = open_handle(root)
    if not is_refused:
        handle.require_files(episodes, keys)
        return
    with refuses(DatasetError, "dataset.missing-file") as refused:
        handle.require_files(episodes, keys)
    assert str(root / name) in str(refused.value)


def test_a_video_whose_frames_are_elsewhere_is_refused(tmp_path: Path) -> None:
    root = copied("video3ep", tmp_path / "set")
    change(root, fps=11)  # no frame is at a multiple of 1/11 s
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    times = pa.array(table["frame_index"].to_numpy() / 11, pa.float32())
    at = table.column_names.index("timestamp")
    pq.write_table(table.set_column(at, "timestamp", times), path)
    with refuses(DatasetError, "video.missing-frame"):
        datasets.open(root)[1]


def damage_rows(table: pa.Table) -> pa.Table:
    return table.slice(0, 20)


def damage_order(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(12), table.slice(0, 12)])


def damage_column(table: pa.Table) -> pa.Table:
    return table.drop_columns(["action"])


def damage_type(table: pa.Table) -> pa.Table:
    at = table.column_names.index("action")
    return table.set_column(at, "action", pa.array(["x"] * len(table)))


def damage_structs(table: pa.Table) -> pa.Table:
    at = table.column_names.index("action")
    return table.set_column(at, "action", pa.array([{"a": 1}] * len(table)))


def damage_values(table: pa.Table) -> pa.Table:
    at = table.column_names.index("action")
    gaps = [None, *table["action"].to_pylist()[1:]]
    return table.set_column(at, "action", pa.array(gaps, pa.list_(pa.float32())))


def damage_task(table: pa.Table) -> pa.Table:
    at = table.column_names.index("task_index")
    return table.set_column(at, "task_index", pa.array([7] * len(table)))


@pytest.mark.parametrize(
    ("damage", "code", "datum"),
    [
        (damage_rows, "dataset.wrong-length", "file-000.parquet"),
        (damage_order, "dataset.episode-order", "episode 1"),
        (damage_column, "dataset.missing-column", "action"),
        (damage_type, "dataset.wrong-type", "string"),
        (damage_structs, "dataset.wrong-type", "struct"),
        (damage_values, "dataset.wrong-type", "list"),
        (damage_task, "dataset.unknown-task", "task_index"),
    ],
)
def test_a_damaged_table_is_named_with_what_is_wrong(
    tmp_path: Path, damage: Any, code: str, datum: str
) -> None:
    root = copied("video3ep", tmp_path / "set")
    path = root / "data/chunk-000/file-000.parquet"
    pq.write_table(damage(pq.read_table(path)), path)
    with refuses(DatasetError, code) as refused:
        datasets.open(root).batch(range(20), keys=["action"])
    assert datum in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("where", ["meta/tasks.parquet", "data/chunk-000/file-000.parquet"])
def test_texts_that_are_none_are_one_line(tmp_path: Path, where: str) -> None:
    root = copied("video3ep", tmp_path / "set")
    table = pq.read_table(root / where)
    name = "task" if "task" in table.column_names else "note"
    wrong = pa.array([b"\xd8\xff"] * len(table), pa.binary()).view(pa.string())
    table = table.set_column(table.column_names.index(name), name, wrong)
    pq.write_table(table, root / where)
    with refuses(DatasetError, "dataset.damaged-file") as refused:
        datasets.open(root).batch([0], keys=["note"])
    assert "'utf-8'" in str(refused.value)


@pytest.mark.parametrize("length", [0, 3, 4, 100, 5000])
def test_a_cut_table_is_one_line(tmp_path: Path, length: int) -> None:
    root = copied("video3ep", tmp_path / "set")
    path = root / "data/chunk-000/file-000.parquet"
    path.write_bytes(path.read_bytes()[:length])
    with refuses(DatasetError, "dataset.damaged-file") as refused:
        datasets.open(root)[0]
    assert "file-000.parquet" in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n cut", None])
def test_a_picture_that_is_none_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    root = copied("image1ep", tmp_path / "set")
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    kind = table.schema.field(TOP).type
    files = pa.array([{"bytes": content, "path": "frame.png"}] * 5, kind)
    pq.write_table(table.set_column(table.column_names.index(TOP), TOP, files), path)
    with pytest.raises(DatasetError) as refused:
        datasets.open(root)[0]
    assert refused.value.code in ("dataset.damaged-image", "dataset.unsupported-image")
    assert TOP in str(refused.value)


def test_a_folder_or_a_name_without_a_dataset_is_one_line(tmp_path: Path) -> None:
    with refuses(DatasetError, "dataset.not-found") as refused:
        datasets.open(tmp_path)
    assert "meta/info.json" in str(refused.value)
    with refuses(DatasetError, "dataset.not-found"):
        datasets.open(tmp_path / "none")
    with refuses(DatasetError, "dataset.not-found"):
        datasets.open("./no/such/folder")


def test_a_long_text_that_every_frame_says_is_held_once(tmp_path: Path) -> None:
    """Half a megabyte, ten thousand times: written out, five gigabytes from a small file."""
    root = make_numbers(tmp_path / "set", [10_000])
    path = root / "data/chunk-000/file-000.parquet"
    long = pa.DictionaryArray.from_arrays(np.zeros(10_000, np.int32), ["x" * 500_000])
    pq.write_table(pq.read_table(path).append_column("note", long), path)
    features = datasets.open(root).info.features
    change(root, features={**features, "note": {"dtype": "string", "shape": [1], "names": None}})
    batch = datasets.open(root).batch(range(10_000), keys=["note"])
    assert len({id(text) for text in batch["note"]}) == 1


@pytest.mark.parametrize("length", [10**9, 2**40])
def test_nothing_is_set_aside_on_the_word_of_the_table_of_episodes(
    tmp_path: Path, length: int
) -> None:
    root = copied("video3ep", tmp_path / "set")
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("length")
    pq.write_table(table.set_column(at, "length", pa.array([12, 7, length])), path)
    settings = FrameCacheSettings(cache_dir=str(tmp_path / "cache"))
    with refuses(DatasetError, "dataset.wrong-length") as refused:
        datasets.open(root, cache=settings)[0]
    assert "file-000.parquet" in str(refused.value)
    assert not (tmp_path / "cache").exists()


def test_a_dataset_that_is_edited_while_it_is_read_shows_no_other_episodes_pictures(
    tmp_path: Path,
) -> None:
    expected = datasets.open(GOLDEN / "video3ep").batch([12], [TOP])[TOP]
    for gone, stays in ((2, True), (0, False)):
        root = copied("video3ep", tmp_path / str(gone))
        dataset = datasets.open(root, episodes=[1])
        dataset.batch([0], ["timestamp", "task_index", "episode_index"])  # no video is open yet
        edit(root, in_place_destination(root), lambda source, gone=gone: delete(source, [gone]))
        if stays:  # where it lay
            np.testing.assert_array_equal(dataset.batch([0], [TOP])[TOP], expected)
        else:
            with refuses(DatasetError, "dataset.changed"):
                dataset.batch([0], [TOP])


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_an_error_of_the_system_is_never_called_damage(tmp_path: Path, number: int) -> None:
    told = OSError(number, "Failed to open local file")
    arrow = OSError(f"Failed to open local file 'x'. Detail: [errno {number}] whatever")
    for damaged in (damaged_table_error, damaged_video_error):
        for error in (told, arrow):
            with refuses(CannotRead, "disk.read-failed") as refused:
                damaged(tmp_path / "x", error)
            assert os.strerror(number) in str(refused.value)
            assert "damaged" not in str(refused.value)
    for content in (OSError("Couldn't deserialize thrift"), ValueError("no footer")):
        assert "damaged" in str(damaged_table_error(tmp_path / "x", content))


@pytest.mark.parametrize("name", ["meta/info", "meta/tasks", "meta/episodes", "data/chunk"])
def test_a_check_that_cannot_read_a_file_says_the_systems_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    root = make_numbers(tmp_path / "set", [3, 4])
    reason = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def failing(real: Any) -> Any:
        def read(path: Any, *given: Any, **named: Any) -> Any:
            if name in str(path):
                raise reason
            return real(path, *given, **named)

        return read

    for module, function in (
        (info_file, "read_regular_file"),
        (tables.pq, "read_metadata"),
    ):
        monkeypatch.setattr(module, function, failing(getattr(module, function)))
    assert main(["data", "check", str(root)]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert os.strerror(errno.EMFILE) in said.err
    assert "damaged" not in said.out + said.err
