"""What is recorded is in the dataset, whole and in LeRobot's form, or it is not there at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proctor.datasets import writer as writer_module
from proctor.datasets.edit.compaction import compact
from proctor.datasets.edit.edit_plan import FileSizeLimits
from proctor.datasets.format.episode_stats import read_episode_stats
from proctor.datasets.format.episodes import read_episodes
from proctor.datasets.format.info_file import read_info, write_info
from proctor.datasets.format.tables import read_stats
from proctor.datasets.format.tasks import read_tasks, write_tasks
from proctor.datasets.frames.encoder import Codec
from proctor.datasets.frames.video import FrameReader, FrameRequest
from proctor.datasets.reader import open as open_dataset
from proctor.datasets.writer import DatasetWriter
from proctor.datasets.writing.layout import FileLayout, recorded_codec
from proctor.datasets.writing.staged_episode import StagedEpisodeWriter, read_staged_episode
from proctor.datasets.writing.staging import lock_dataset, unlock_dataset
from proctor.errors import DatasetError
from proctor.system import files
from tests.refusals import refuses
from tests.unit.datasets.writing.toy import FAST, FEATURES, INFO, frame

GOLDEN = Path(__file__).parents[3] / "golden" / "data" / "datasets" / "video3ep"
TOP = "observation.images.top"


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here cuts the power: a kill leaves what was written, waited for or not."""
    monkeypatch.setattr(files, "sync", lambda fd: None)


def record(writer: DatasetWriter, *lengths: int, task: str = "push") -> None:
    for n in lengths:
        for i in range(n):
            writer.add_frame(frame(i), task)
        writer.end_episode()


def files_of(root: Path) -> set[str]:
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and ".proctor" not in path.parts
    }


def contents(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in files_of(root)}


def shades(root: Path) -> list[list[int]]:
    """The grey levels that each episode's video shows, to the tens."""
    info = read_info(root)
    seen = []
    for row in read_episodes(root, info):
        span = row.videos[TOP]
        path = root / f"videos/{TOP}/chunk-{span.chunk:03d}/file-{span.file:03d}.mp4"
        first = round(span.from_s * info.fps)
        wanted = [FrameRequest(path, first + i, info.fps) for i in range(row.length)]
        pictures = FrameReader().read(wanted)
        seen.append([round(float(picture.mean()) / 10) for picture in pictures])
    return seen


def rows_of(root: Path) -> list[dict[str, Any]]:
    """All frames of the dataset's tables, pictures left out, as LeRobot finds them."""
    paths = sorted((root / "data").glob("*/*.parquet"))
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return [{k: v for k, v in row.items() if "images" not in k} for row in rows]


def golden_frames() -> list[tuple[list[dict[str, Any]], str]]:
    """The golden dataset's episodes, frame by frame; its pictures are as decoded."""
    dataset = open_dataset(GOLDEN)
    keys = [key for key in dataset.info.features if key in _own(GOLDEN)]
    episodes = []
    for row in dataset.episodes:
        items = [dataset[i] for i in range(row.from_index, row.to_index)]
        frames = [{key: _shaped(dataset.info, key, item[key]) for key in keys} for item in items]
        episodes.append((frames, row.tasks[0]))
    return episodes


def _own(root: Path) -> set[str]:
    counted = {"timestamp", "frame_index", "episode_index", "index", "task_index"}
    return set(read_info(root).features) - counted


def _shaped(info: Any, key: str, value: Any) -> Any:
    if info.dtype(key) == "string":
        return str(value)
    kind = "uint8" if key in info.cameras else info.dtype(key)
    return np.asarray(value, kind).reshape(info.shape(key))


@pytest.fixture(scope="module")
def golden_again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden dataset, recorded again with our writer."""
    root = tmp_path_factory.mktemp("golden") / "again"
    said = read_info(GOLDEN)
    features = {key: said.features[key] for key in said.features if key in _own(GOLDEN)}
    layout = FileLayout(robot_type=said.robot_type)
    with DatasetWriter.create(root, said.fps, features, Codec(), layout) as writer:
        for frames, task in golden_frames():
            for values in frames:
                writer.add_frame(values, task)
            writer.end_episode()
    return root


def test_info_json_is_what_lerobot_writes(golden_again: Path) -> None:
    ours, theirs = (
        json.loads((root / "meta/info.json").read_text()) for root in (golden_again, GOLDEN)
    )
    assert list(ours) == list(theirs)
    assert ours == theirs


@pytest.mark.parametrize(
    "name",
    [
        "data/chunk-000/file-000.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "meta/tasks.parquet",
    ],
)
def test_tables_have_lerobots_columns_types_and_notes(golden_again: Path, name: str) -> None:
    ours, theirs = (pq.ParquetFile(root / name) for root in (golden_again, GOLDEN))
    assert ours.schema_arrow.names == theirs.schema_arrow.names
    assert ours.schema_arrow.equals(theirs.schema_arrow)
    assert ours.schema == theirs.schema  # Parquet's own: names of list elements too
    assert _notes(ours) == _notes(theirs)
    assert ours.metadata.num_row_groups == theirs.metadata.num_row_groups
    assert ours.metadata.row_group(0).column(0).compression == "SNAPPY"


def _notes(file: pq.ParquetFile) -> dict[bytes, Any]:
    notes = {
        key: json.loads(value)
        for key, value in (file.schema_arrow.metadata or {}).items()
        if key in (b"huggingface", b"pandas")
    }
    notes.get(b"huggingface", {}).pop("fingerprint", None)  # a random key of its cache
    for maker in ("creator", "pandas_version"):
        notes.get(b"pandas", {}).pop(maker, None)
    return notes


def test_frames_and_statistics_of_episodes_equal_lerobots(golden_again: Path) -> None:
    name = "data/chunk-000/file-000.parquet"
    assert pq.read_table(golden_again / name).equals(pq.read_table(GOLDEN / name))
    ours, theirs = (read_episode_stats(root, read_info(root)) for root in (golden_again, GOLDEN))
    for mine, golden in zip(ours, theirs, strict=True):
        assert list(mine) == list(golden)
        for key in (key for key in golden if "images" not in key):
            for name, expected in golden[key].items():  # LeRobot sums in float32
                rel = 1e-5 if name in ("mean", "std") else 0
                assert mine[key][name] == pytest.approx(expected, rel=rel, abs=0), (key, name)
        for stat in ("min", "max", "mean", "q50"):  # of pictures that were decoded
            assert mine[TOP][stat] == pytest.approx(golden[TOP][stat], abs=3 / 255)


def test_quantiles_of_the_dataset_are_the_datas_not_an_envelope(golden_again: Path) -> None:
    ours, theirs = read_stats(golden_again), read_stats(GOLDEN)
    states = open_dataset(GOLDEN).batch(range(28))["observation.state"]
    for name in ("min", "max", "mean", "std", "count"):
        assert ours["observation.state"][name] == pytest.approx(
            theirs["observation.state"][name], rel=1e-6
        )
    exact = np.quantile(states, 0.5, axis=0, method="inverted_cdf")
    assert ours["observation.state"]["q50"] == pytest.approx(exact, abs=1e-3)
    assert theirs["observation.state"]["q50"] != pytest.approx(exact, abs=1e-1)


def test_episodes_have_files_of_their_own_until_close(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    writer = DatasetWriter.create(root, 10, FEATURES, FAST)
    record(writer, 3, 2)
    assert "data/chunk-000/file-001.parquet" in files_of(root)
    assert shades(root) == [[0, 1, 2], [0, 1]]
    before, stats = rows_of(root), read_stats(root)
    assert writer.close() is None
    assert files_of(root) == {
        "data/chunk-000/file-000.parquet",
        f"videos/{TOP}/chunk-000/file-000.mp4",
        "meta/episodes/chunk-000/file-000.parquet",
        "meta/info.json",
        "meta/stats.json",
        "meta/tasks.parquet",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]
    assert rows_of(root) == before
    assert shades(root) == [[0, 1, 2], [0, 1]]
    assert pq.ParquetFile(root / "data/chunk-000/file-000.parquet").num_row_groups == 2
    after = read_stats(root)
    assert all((after[k][n] == v).all() for k in stats for n, v in stats[k].items())


def test_resume_appends_and_gives_what_one_session_would_have(tmp_path: Path) -> None:
    at_once = DatasetWriter.create(tmp_path / "once", 10, FEATURES, FAST)
    record(at_once, 3)
    record(at_once, 2, 4, task="lift")
    at_once.close()
    first = DatasetWriter.create(tmp_path / "twice", 10, FEATURES, FAST)
    record(first, 3)
    first.close()
    second = DatasetWriter.resume(tmp_path / "twice")
    assert second.codec == FAST
    record(second, 2, task="lift")
    second.release()
    third = DatasetWriter.resume(tmp_path / "twice")
    record(third, 4, task="lift")
    third.close()
    once, twice = contents(tmp_path / "once"), contents(tmp_path / "twice")
    assert [name for name in once if twice.get(name) != once[name]] == []
    assert twice.keys() == once.keys()


def test_a_link_to_a_dataset_stays_one_and_leads_to_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    with DatasetWriter.create(tmp_path / "large/toy", 10, FEATURES, FAST) as writer:
        record(writer, 3)
    link = tmp_path / "toy"
    link.symlink_to("large/toy")
    with DatasetWriter.resume(link) as writer:
        record(writer, 2)
    assert link.readlink() == Path("large/toy")
    assert read_info(tmp_path / "large/toy").total_episodes == 2
    assert sorted(path.name for path in tmp_path.rglob("*toy*")) == ["toy", "toy"]


def test_a_discarded_episode_leaves_no_frame_behind(tmp_path: Path) -> None:
    writer = DatasetWriter.create(tmp_path / "toy", 10, FEATURES, FAST)
    record(writer, 2)
    before = files_of(tmp_path / "toy")
    for i in range(5):
        writer.add_frame(frame(i + 5), "another task")
    writer.discard_episode()
    assert files_of(tmp_path / "toy") == before
    record(writer, 3)
    writer.close()
    assert shades(tmp_path / "toy") == [[0, 1], [0, 1, 2]]
    info = read_info(tmp_path / "toy")
    assert read_tasks(tmp_path / "toy", info) == ("push",)
    assert not list((tmp_path / "toy").rglob("takes"))


def test_an_episode_that_was_not_ended_is_no_part_of_it(tmp_path: Path) -> None:
    writer = DatasetWriter.create(tmp_path / "toy", 10, FEATURES, FAST)
    record(writer, 2)
    writer.add_frame(frame(7), "push")
    writer.close()
    assert shades(tmp_path / "toy") == [[0, 1]]


def test_takes_made_elsewhere_are_appended_in_the_order_given(tmp_path: Path) -> None:
    takes = []
    for name, n in (("b", 2), ("a", 3)):
        take = StagedEpisodeWriter(tmp_path / name, INFO, FAST)
        for i in range(n):
            take.add_frame(frame(i), name)
        takes.append(take.finish())
    writer = DatasetWriter.create(tmp_path / "toy", 10, FEATURES, FAST)
    assert [writer.append(take) for take in takes] == [0, 1]
    writer.close()
    assert shades(tmp_path / "toy") == [[0, 1], [0, 1, 2]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy"]


def test_takes_that_come_together_are_the_dataset_of_those_that_come_alone(tmp_path: Path) -> None:
    for way in ("alone", "together"):
        takes = []
        for n in (2, 3, 1):
            take = StagedEpisodeWriter(tmp_path / f"take{n}", INFO, FAST)
            for i in range(n):
                take.add_frame(frame(i), f"push {n % 2}")
            takes.append(take.finish())
        writer = DatasetWriter.create(tmp_path / way, 10, FEATURES, FAST)
        if way == "together":
            assert writer.append_all(takes) == 0
            assert len(list((tmp_path / way / "meta/episodes").rglob("*.parquet"))) == 1
            assert shades(tmp_path / way) == [[0, 1], [0, 1, 2], [0]]
        else:
            assert [writer.append(take) for take in takes] == [0, 1, 2]
        writer.close()
    alone, together = contents(tmp_path / "alone"), contents(tmp_path / "together")
    table = "data/chunk-000/file-000.parquet"  # its schema is the same in other bytes
    del alone[table], together[table]
    assert together == alone
    assert rows_of(tmp_path / "together") == rows_of(tmp_path / "alone")
    groups = [
        pq.read_metadata(tmp_path / way / table).num_row_groups for way in ("alone", "together")
    ]
    assert groups == [3, 3]


def test_takes_that_come_together_fill_data_files_up_to_the_limit(tmp_path: Path) -> None:
    axes = ["height", "width", "channels"]
    noisy = {"image": {"dtype": "image", "shape": [192, 192, 3], "names": axes}}
    layout = FileLayout(data_files_size_in_mb=1)
    writer = DatasetWriter.create(tmp_path / "toy", 10, noisy, layout=layout)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (12, 192, 192, 3), np.uint8)  # 111 kB each
    takes, at = [], 0
    for n in (4, 4, 4):
        take = StagedEpisodeWriter(tmp_path / str(at), writer.info, FAST)
        for image in images[at : at + n]:
            take.add_frame({"image": image}, "push")
        takes.append(take.finish())
        at += n
    writer.append_all(takes)
    assert read_episodes(writer.root, writer.info).data_file.tolist() == [0, 0, 1]
    writer.close()
    assert np.array_equal(open_dataset(tmp_path / "toy").batch(range(12))["image"], images)
    paths = sorted((tmp_path / "toy/data").rglob("*.parquet"))
    assert [pq.read_metadata(path).num_row_groups for path in paths] == [2, 1]


def test_takes_that_come_together_are_in_it_or_none_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = DatasetWriter.create(tmp_path / "toy", 10, FEATURES, FAST)
    record(writer, 2)
    before = contents(tmp_path / "toy")
    takes = []
    for name in ("a", "b"):
        take = StagedEpisodeWriter(tmp_path / name, INFO, FAST)
        take.add_frame(frame(5), name)
        takes.append(take.finish())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("proctor.datasets.writer.write_stats", full)
        with refuses(DatasetError, "disk.write-failed") as refused:
            writer.append_all(takes)
        assert "1 finished" in str(refused.value)
    assert [read_staged_episode(take.folder).length for take in takes] == [1, 1]
    writer.release()
    writer = DatasetWriter.resume(tmp_path / "toy", FAST)
    assert contents(tmp_path / "toy") == before
    assert writer.append_all(takes) == 1
    writer.close()
    assert shades(tmp_path / "toy") == [[0, 1], [5], [5]]


def test_a_take_of_other_features_is_refused(tmp_path: Path) -> None:
    take = StagedEpisodeWriter(tmp_path / "take", INFO, FAST)
    take.add_frame(frame(0), "push")
    other = {"observation.state": {"dtype": "float32", "shape": [4], "names": None}}
    writer = DatasetWriter.create(tmp_path / "toy", 10, other, FAST)
    with refuses(DatasetError, "dataset.wrong-features") as refused:
        writer.append(take.finish())
    assert "float32" in str(refused.value)
    assert read_staged_episode(tmp_path / "take").length == 1


def test_files_roll_over_by_size_and_folders_by_number(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    writer = DatasetWriter.create(root, 10, FEATURES, FAST, FileLayout(chunks_size=2))
    record(writer, 2, 2, 2, 2, 2)
    assert "data/chunk-002/file-000.parquet" in files_of(root)
    before = rows_of(root)
    writer.release()
    size = (root / "data/chunk-000/file-000.parquet").stat().st_size
    film = (root / f"videos/{TOP}/chunk-000/file-000.mp4").stat().st_size
    lock = lock_dataset(root)
    lock = compact(root, lock, FileSizeLimits(data=int(2.5 * size), video=int(3.5 * film)))
    unlock_dataset(root, lock)
    found = files_of(root)
    assert {name for name in found if name.startswith("data")} == {
        "data/chunk-000/file-000.parquet",
        "data/chunk-000/file-001.parquet",
        "data/chunk-001/file-000.parquet",
    }
    assert {name for name in found if name.startswith("videos")} == {
        f"videos/{TOP}/chunk-000/file-000.mp4",
        f"videos/{TOP}/chunk-000/file-001.mp4",
    }
    assert len([name for name in found if name.startswith("meta/episodes")]) > 1
    assert rows_of(root) == before
    assert shades(root) == [[0, 1]] * 5
    with DatasetWriter.resume(root) as again:
        record(again, 3)
    assert shades(root) == [[0, 1]] * 5 + [[0, 1, 2]]


def test_videos_of_two_codecs_stay_apart(tmp_path: Path) -> None:
    writer = DatasetWriter.create(tmp_path / "toy", 10, FEATURES, FAST)
    record(writer, 2, 2)
    writer.release()
    with DatasetWriter.resume(tmp_path / "toy", Codec()) as other:
        record(other, 2)
    assert len(list((tmp_path / "toy/videos").rglob("*.mp4"))) > 1
    assert shades(tmp_path / "toy") == [[0, 1]] * 3


def test_files_of_others_in_the_folder_survive(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    writer = DatasetWriter.create(root, 10, FEATURES, FAST)
    (root / "README.md").write_text("a card")
    (root / "meta/notes").mkdir()
    (root / "meta/notes/mine.txt").write_text("mine")
    record(writer, 2, 2)
    writer.close()
    assert (root / "README.md").read_text() == "a card"
    assert (root / "meta/notes/mine.txt").read_text() == "mine"


def test_compaction_keeps_foreign_columns_of_episodes_and_unused_tasks(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    writer = DatasetWriter.create(root, 10, FEATURES, FAST)
    record(writer, 2)
    writer.close()
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("operator", pa.array(["anna"])), path)
    tasks = (*read_tasks(root, read_info(root)), "never shown")
    write_tasks(root, tasks)
    write_info(root, replace(read_info(root), total_tasks=len(tasks)))
    with DatasetWriter.resume(root) as again:
        record(again, 3)
    assert len(list(root.glob("data/*/*"))) == 1
    assert pq.read_table(path)["operator"].to_pylist() == ["anna", None]
    assert read_tasks(root, read_info(root)) == tasks


def test_compaction_leaves_data_files_that_have_columns_of_their_own(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    writer = DatasetWriter.create(root, 10, FEATURES, FAST)
    record(writer, 2)
    writer.close()
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("force", pa.array([0.5] * len(table))), path)
    again = DatasetWriter.resume(root)
    record(again, 3)
    assert "force" in str(again.close())
    assert pq.read_table(path)["force"].to_pylist() == [0.5, 0.5]
    assert shades(root) == [[0, 1], [0, 1, 2]]


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with refuses(DatasetError, "dataset.exists"):
        DatasetWriter.create(tmp_path, 10, FEATURES, FAST)


def test_features_that_no_reader_would_take_are_refused_and_the_folder_stays_free(
    tmp_path: Path,
) -> None:
    for key, code in (("a/b", "dataset.invalid-name"), ("index", "dataset.default-feature")):
        features = {key: {"dtype": "float32", "shape": [1], "names": None}}
        with refuses(DatasetError, code) as refused:
            DatasetWriter.create(tmp_path / "toy", 10, features, FAST)
        assert key in str(refused.value)
    DatasetWriter.create(tmp_path / "toy", 10, FEATURES, FAST).close()


def test_a_dataset_of_lerobots_is_gone_on_with(tmp_path: Path) -> None:
    root = tmp_path / "theirs"
    shutil.copytree(GOLDEN, root, copy_function=shutil.copyfile)
    frames, _ = golden_frames()[0]
    with DatasetWriter.resume(root) as writer:
        for values in frames:
            writer.add_frame(values, "a new task")
        assert writer.end_episode() == 3
    dataset, before = open_dataset(root), open_dataset(GOLDEN)
    assert dataset.tasks == (*before.tasks, "a new task")
    ours, theirs = (ds.batch(range(28)) for ds in (dataset, before))
    assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
    again = dataset.batch(range(28, 40))
    assert np.array_equal(again["action"], theirs["action"][:12])


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    writer = DatasetWriter.create(tmp_path / "toy", 10, FEATURES, FAST)
    with refuses(DatasetError, "dataset.in-use"):
        DatasetWriter.resume(tmp_path / "toy")
    writer.close()
    DatasetWriter.resume(tmp_path / "toy").close()


def test_what_is_closed_takes_no_more(tmp_path: Path) -> None:
    writer = DatasetWriter.create(tmp_path / "toy", 10, FEATURES, FAST)
    writer.close()
    with refuses(DatasetError, "dataset.closed"):
        writer.add_frame(frame(0), "push")


def test_an_old_version_is_converted_first(tmp_path: Path) -> None:
    DatasetWriter.create(tmp_path / "toy", 10, FEATURES, FAST).close()
    path = tmp_path / "toy/meta/info.json"
    path.write_text(
        path.read_text()
        .replace("v3.0", "v2.1")
        .replace("chunk_index", "episode_chunk")
        .replace("file_index", "episode_index")
    )
    with refuses(DatasetError, "dataset.old-version") as refused:
        DatasetWriter.resume(tmp_path / "toy")
    assert "v2.1" in str(refused.value)


def test_the_codec_that_a_dataset_was_recorded_with_goes_on() -> None:
    assert recorded_codec(read_info(GOLDEN)) == Codec()


STEPS = (
    "link_or_copy_all",
    "write_table",
    "write_tasks",
    "write_episodes",
    "write_stats",
    "write_info",
)


@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_loses_nothing_that_was_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    root = tmp_path / "toy"
    writer = DatasetWriter.create(root, 10, FEATURES, FAST)
    record(writer, 3)
    take = StagedEpisodeWriter(tmp_path / "take", INFO, FAST)
    take.add_frame(frame(4), "lift")
    finished = take.finish()
    with monkeypatch.context() as full:
        full.setattr(writer_module, step, _no_space)
        with refuses(DatasetError, "disk.write-failed") as refused:
            writer.append(finished)
    assert "1 finished episode" in str(refused.value)
    assert str(tmp_path / "take") in str(refused.value)
    assert shades(root) == [[0, 1, 2]]
    writer.append(finished)  # there is room again
    writer.close()
    undisturbed = DatasetWriter.create(tmp_path / "other", 10, FEATURES, FAST)
    record(undisturbed, 3)
    undisturbed.add_frame(frame(4), "lift")
    undisturbed.end_episode()
    undisturbed.close()
    assert contents(root) == contents(tmp_path / "other")


def _no_space(*args: object, **named: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_while_frames_come_costs_the_open_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = DatasetWriter.create(tmp_path / "toy", 10, FEATURES, FAST)
    record(writer, 2)
    writer.add_frame(frame(0), "push")
    with monkeypatch.context() as full:
        full.setattr(StagedEpisodeWriter, "_video", _no_space)
        with refuses(DatasetError, "disk.write-failed") as refused:
            writer.add_frame(frame(1), "push")
        assert "1 finished" in str(refused.value)
    record(writer, 3)
    writer.close()
    assert shades(tmp_path / "toy") == [[0, 1], [0, 1, 2]]


def test_a_disk_that_fills_at_the_end_costs_the_open_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "toy"
    writer = DatasetWriter.create(root, 10, FEATURES, FAST)
    record(writer, 2)
    writer.add_frame(frame(7), "push")
    with monkeypatch.context() as full:
        full.setattr(writer_module, "write_episodes", _no_space)
        with refuses(DatasetError, "disk.write-failed") as refused:
            writer.end_episode()
        assert "1 finished" in str(refused.value)
    record(writer, 3)
    writer.close()
    assert shades(root) == [[0, 1], [0, 1, 2]]


def test_no_room_to_put_files_together_leaves_them_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = DatasetWriter.create(tmp_path / "toy", 10, FEATURES, FAST)
    record(writer, 2, 3)
    monkeypatch.setattr("proctor.datasets.edit.videos.splice", _no_space)
    assert "no space left" in str(writer.close())
    assert shades(tmp_path / "toy") == [[0, 1], [0, 1, 2]]
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_statistics_do_not_believe_levels_of_another_dataset(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    writer = DatasetWriter.create(root, 10, FEATURES, FAST)
    record(writer, 5, 5)
    writer.close()
    exact = read_stats(root)[TOP]["q90"]
    levels = root / f".proctor/levels/{TOP}.u32"
    levels.write_bytes(levels.read_bytes()[::-1])
    info = read_info(root)
    with DatasetWriter.resume(root) as again:
        record(again, 5)
    assert read_stats(root)[TOP]["q90"] == pytest.approx(exact, abs=0.05)
    assert read_info(root).total_episodes == info.total_episodes + 1
