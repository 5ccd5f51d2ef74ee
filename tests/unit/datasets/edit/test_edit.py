"""Edits of datasets: what is kept stays as it is, and the result is a clean dataset."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proctor import datasets
from proctor.commands.data.edit import merge_into
from proctor.datasets.check import check, repair
from proctor.datasets.edit import edit_plan, operations
from proctor.datasets.edit.build import build, edit
from proctor.datasets.edit.destination import in_place_destination, new_destination
from proctor.datasets.edit.edit_plan import EditPlan, SourceDataset, open_source
from proctor.datasets.edit.split import split_into
from proctor.datasets.format.episodes import read_episode_stats, write_episodes
from proctor.datasets.format.info_file import read_info, write_info
from proctor.datasets.format.tables import read_stats
from proctor.datasets.frames.encoder import CODECS
from proctor.datasets.frames.video import probe
from proctor.datasets.numbers.statistics import QUANTILES, aggregate
from proctor.datasets.writer import DatasetWriter
from proctor.datasets.writing.file_allocation import FileAllocation
from proctor.datasets.writing.staging import StagingArea
from proctor.errors import UsageError
from proctor.system import files
from tests.refusals import refuses
from tests.unit.datasets.writing.toy import FAST, FEATURES, frame

GOLDEN = Path(__file__).parents[3] / "golden" / "data" / "datasets"
CAMERA = TOP = "observation.images.top"


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here cuts the power."""
    monkeypatch.setattr(files, "sync", lambda fd: None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three episodes, of 12, 7 and 9 frames; the second has a task of its own."""
    return Path(shutil.copytree(GOLDEN / "video3ep", tmp_path / "source"))


def made(root: Path, into: Path, make: Callable[[SourceDataset], EditPlan]) -> Path:
    edit(root, new_destination(into), make)
    return into


def packets(root: Path, episode: int, key: str = CAMERA) -> list[bytes]:
    """The packets of an episode's video, as they lie in its file."""
    row = open_source(root).rows[episode]
    info, span = read_info(root), row.videos[key]
    path = root / f"videos/{key}/chunk-{span.chunk:03d}/file-{span.file:03d}.mp4"
    with av.open(str(path)) as container:
        found = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    start = round(span.from_s * info.fps)
    return found[start : start + row.length]


def assert_clean(root: Path) -> None:
    """Everything that readers rely on follows from everything else."""
    assert check(root, decode=False).findings == ()
    source = open_source(root)
    info = source.info
    tables = [pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet"))]
    columns = {
        name: np.concatenate([table[name].to_numpy() for table in tables])
        for name in ("index", "episode_index", "frame_index", "timestamp", "task_index")
    }
    lengths = [row.length for row in source.rows]
    assert info.version == "v3.0"
    assert info.total_episodes == len(lengths)
    assert info.total_frames == sum(lengths)
    assert info.total_tasks == len(source.tasks)
    assert info.splits == {"train": f"0:{len(lengths)}"}
    assert columns["index"].tolist() == list(range(info.total_frames))
    assert columns["episode_index"].tolist() == np.repeat(np.arange(len(lengths)), lengths).tolist()
    assert columns["frame_index"].tolist() == [i for n in lengths for i in range(n)]
    assert set(columns["task_index"].tolist()) == set(range(len(source.tasks)))
    for row in source.rows:
        rows = slice(row.from_index, row.to_index)
        assert row.to_index - row.from_index == row.length
        assert {source.tasks[i] for i in columns["task_index"][rows]} == set(row.tasks)
    stats = read_episode_stats(root, info)
    counted = {key for key, entry in info.features.items() if entry["dtype"] != "string"}
    assert all(set(of_episode) == counted for of_episode in stats)
    for key, expected in (("index", info.total_frames - 1), ("episode_index", len(lengths) - 1)):
        assert stats[-1][key]["max"] == [expected]
        assert read_stats(root)[key]["max"] == [expected]
    for key, of_key in aggregate(stats).items():
        for name in set(of_key) - set(QUANTILES):
            np.testing.assert_allclose(read_stats(root)[key][name], of_key[name], rtol=1e-12)


def items(root: Path) -> list[dict[str, Any]]:
    dataset = datasets.open(root)
    return [dataset[i] for i in range(len(dataset))]


@cache
def golden_items() -> list[dict[str, Any]]:
    return items(GOLDEN / "video3ep")


def assert_same_frames(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for key in one.keys() - {"index", "episode_index", "task_index"}:
            np.testing.assert_array_equal(one[key], other[key], err_msg=key)


def test_deleting_keeps_the_other_frames_to_the_byte(source: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    out = made(source, tmp_path / "out", lambda s: operations.delete(s, [0]))
    assert_clean(out)
    assert [packets(out, 0), packets(out, 1)] == [packets(source, 1), packets(source, 2)]
    assert_same_frames(items(out), golden_items()[12:])
    assert open_source(out).tasks == ("push the block", "lift the cup")
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before


def test_a_task_that_no_episode_has_any_more_is_gone(source: Path, tmp_path: Path) -> None:
    out = made(source, tmp_path / "out", lambda s: operations.delete(s, [1]))
    assert_clean(out)
    assert open_source(out).tasks == ("push the block",)


def test_split_shares_all_episodes_in_order(source: Path, tmp_path: Path) -> None:
    recipes = operations.split(open_source(source), {"train": 0.4, "val": 0.6})
    for name, one in recipes.items():
        build(one, new_destination(tmp_path / name))
        assert_clean(tmp_path / name)
    assert_same_frames([*items(tmp_path / "train"), *items(tmp_path / "val")], golden_items())
    assert read_info(tmp_path / "train").total_episodes == 1


def test_split_takes_lists_of_episodes(source: Path, tmp_path: Path) -> None:
    recipes = operations.split(open_source(source), {"odd": [1], "even": [2, 0]})
    build(recipes["even"], new_destination(tmp_path / "even"))
    assert_clean(tmp_path / "even")
    expected = golden_items()
    assert_same_frames(items(tmp_path / "even"), [*expected[19:], *expected[:12]])


def test_merge_joins_tasks_by_their_words(source: Path, tmp_path: Path) -> None:
    one = made(source, tmp_path / "one", lambda s: operations.delete(s, [0, 2]))
    merged = operations.merge([open_source(one), open_source(source)])
    build(merged, new_destination(tmp_path / "out"))
    assert_clean(tmp_path / "out")
    assert open_source(tmp_path / "out").tasks == ("lift the cup", "push the block")
    assert_same_frames(items(tmp_path / "out"), [*golden_items()[12:19], *golden_items()])
    assert packets(tmp_path / "out", 2) == packets(source, 1)


def test_a_merged_dataset_has_a_card_that_quotes_those_of_its_parts(
    source: Path, tmp_path: Path
) -> None:
    said = "---\ntags:\n- LeRobot\n---\n\n# me/one\n\nRecorded by hand.\n"
    one = made(source, tmp_path / "one", lambda s: operations.delete(s, [0, 2]))
    (one / "README.md").write_text(said)
    bare = Path(shutil.copytree(source, tmp_path / "bare"))
    (bare / "README.md").unlink(missing_ok=True)
    merged = operations.merge([open_source(one), open_source(bare)])
    build(merged, new_destination(tmp_path / "both"))
    head, _, text = (tmp_path / "both/README.md").read_text().partition("\n---\n")
    assert "- LeRobot" in head
    assert text.startswith("\n# both\n")
    assert "- `one`, 1 episodes\n  > # me/one\n  >\n  > Recorded by hand.\n" in text
    assert text.rstrip().endswith("- `bare`, 3 episodes")
    assert (one / "README.md").read_text() == said


def test_a_renamed_camera_and_a_renamed_column_are_found_under_their_new_names(
    source: Path, tmp_path: Path
) -> None:
    camera = made(
        source, tmp_path / "a", lambda s: operations.rename_feature(s, CAMERA, "observation.image")
    )
    out = made(camera, tmp_path / "b", lambda s: operations.rename_feature(s, "action", "action.x"))
    assert_clean(out)
    assert list(read_info(out).features)[1:3] == ["action.x", "observation.image"]
    old, new = golden_items()[5], items(out)[5]
    np.testing.assert_array_equal(new["observation.image"], old[CAMERA])
    np.testing.assert_array_equal(new["action.x"], old["action"])
    assert not old.keys() & {"observation.image", "action.x"}
    assert read_stats(out)["action.x"]["mean"].tolist() == pytest.approx(
        read_stats(source)["action"]["mean"].tolist()
    )


def test_removed_features_leave_no_column_video_or_statistics(source: Path, tmp_path: Path) -> None:
    out = made(source, tmp_path / "out", lambda s: operations.remove_features(s, [CAMERA, "note"]))
    assert_clean(out)
    assert not (out / "videos").exists()
    assert not {CAMERA, "note"} & (items(out)[0].keys() | read_stats(out).keys())
    expected = [
        {k: v for k, v in item.items() if k not in (CAMERA, "note")} for item in golden_items()
    ]
    assert_same_frames(items(out), expected)


def test_set_task_changes_words_and_nothing_else(source: Path, tmp_path: Path) -> None:
    out = made(source, tmp_path / "out", lambda s: operations.set_tasks(s, {2: "wipe", 0: "wipe"}))
    assert_clean(out)
    assert open_source(out).tasks == ("lift the cup", "wipe")
    assert [row.tasks for row in open_source(out).rows] == [("wipe",), ("lift the cup",), ("wipe",)]
    changed = [
        {**item, "task": out_item["task"]}
        for item, out_item in zip(golden_items(), items(out), strict=True)
    ]
    assert_same_frames(items(out), changed)


def test_pictures_in_tables_become_videos_with_their_tasks_and_statistics(tmp_path: Path) -> None:
    source = GOLDEN / "image1ep"
    out = made(source, tmp_path / "out", lambda s: operations.to_video(s, FAST))
    assert_clean(out)
    info = read_info(out)
    assert info.features[CAMERA]["dtype"] == "video"
    assert info.features[CAMERA]["shape"] == [64, 96, 3]
    assert CAMERA not in pq.read_schema(out / "data/chunk-000/file-000.parquet").names
    for old, new in zip(items(source), items(out), strict=True):
        assert new["task"] == old["task"]
        assert new[CAMERA].shape == (64, 96, 3)
    for name, value in read_stats(source)[CAMERA].items():
        np.testing.assert_allclose(read_stats(out)[CAMERA][name], value, rtol=1e-4)


def test_videos_encoded_again_have_another_codec_and_the_same_frames(
    source: Path, tmp_path: Path
) -> None:
    out = made(source, tmp_path / "out", lambda s: operations.reencode(s, [], FAST))
    assert_clean(out)
    assert probe(out / f"videos/{CAMERA}/chunk-000/file-000.mp4").codec == "h264"
    assert read_info(out).features[CAMERA]["info"]["video.codec"] == "h264"
    for old, new in zip(golden_items(), items(out), strict=True):
        assert np.abs(new[CAMERA].astype(int) - old[CAMERA].astype(int)).mean() < 6


def test_statistics_that_are_wrong_or_missing_are_worked_out_again(
    source: Path, tmp_path: Path
) -> None:
    right = read_episode_stats(source, read_info(source))
    path = source / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    names = [name for name in table.column_names if not name.startswith("stats/")]
    pq.write_table(table.select(names), path)
    out = made(
        source, tmp_path / "out", lambda s: operations.recompute_statistics(s, pictures=True)
    )
    assert_clean(out)
    for found, expected in zip(read_episode_stats(out, read_info(out)), right, strict=True):
        for key in expected:
            for name in expected[key]:
                loose = 0.02 if key == CAMERA else 0  # AV1 changes pixels a little
                np.testing.assert_allclose(
                    found[key][name], expected[key][name], rtol=1e-6, atol=1e-6 + loose
                )


def test_an_edit_in_place_swaps_and_leaves_nothing_beside(source: Path) -> None:
    expected = golden_items()[19:]
    edit(source, in_place_destination(source), lambda s: operations.delete(s, [0, 1]))
    assert_clean(source)
    assert_same_frames(items(source), expected)
    assert [path.name for path in source.parent.iterdir()] == ["source"]
    assert not (source / ".lock").exists()


def test_every_edit_with_a_backup_keeps_the_dataset_before_it(source: Path) -> None:
    before = golden_items()
    backups = [
        edit(
            source, in_place_destination(source, keep_old=True), lambda s: operations.delete(s, [0])
        ).backup
        for _ in range(2)
    ]
    assert read_info(source).total_episodes == 1
    first, second = source.with_name("source_old"), source.with_name("source_old_2")
    assert backups == [first, second]
    assert_same_frames(items(first), before)
    assert_same_frames(items(second), before[12:])
    names = sorted(path.name for path in source.parent.iterdir())
    assert names == ["source", "source_old", "source_old_2"]
    assert not (first / ".lock").exists()


def test_a_backup_takes_no_name_that_is_in_use(source: Path) -> None:
    source.with_name("source_old").symlink_to("gone")
    source.with_name("source_old_2").write_text("my notes")
    where = in_place_destination(source, keep_old=True)
    built = edit(source, where, lambda s: operations.delete(s, [0]))
    assert built.backup == source.with_name("source_old_3")
    assert source.with_name("source_old_2").read_text() == "my notes"


def test_files_that_stay_as_they_are_are_not_written_again(source: Path) -> None:
    video, table = (next(source.glob(what)) for what in ("videos/*/*/*", "data/*/*"))
    (source / "README.md").write_text("my notes")
    (source / "meta" / "mine.txt").write_text("more")
    inodes = {path: path.stat().st_ino for path in (video, table, source / "README.md")}
    edit(
        source,
        in_place_destination(source),
        lambda s: operations.rename_feature(s, CAMERA, "observation.image"),
    )
    renamed = source / "videos/observation.image/chunk-000/file-000.mp4"
    assert renamed.stat().st_ino == inodes[video]
    assert table.stat().st_ino == inodes[table]
    assert (source / "README.md").stat().st_ino == inodes[source / "README.md"]
    assert (source / "meta/mine.txt").read_text() == "more"


def test_a_new_dataset_shares_no_file_with_its_source(source: Path, tmp_path: Path) -> None:
    out = made(source, tmp_path / "out", lambda s: operations.delete(s, [2]))
    assert {path.stat().st_nlink for path in out.rglob("*") if path.is_file()} == {1}
    assert {path.stat().st_nlink for path in source.rglob("*") if path.is_file()} == {1}


def test_files_are_filled_up_to_their_limits(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = next(source.glob("videos/*/*/*")).stat().st_size
    monkeypatch.setattr(edit_plan, "MB", 1.5 * size)  # one and a half of the source's files
    merged = operations.merge([open_source(source) for _ in range(5)])
    small = replace(merged, info=replace(merged.info, video_files_size_in_mb=2, chunks_size=1))
    build(small, new_destination(tmp_path / "out"))
    assert_clean(tmp_path / "out")
    found = sorted((tmp_path / "out").glob("videos/*/*/*"))
    assert [path.parent.name for path in found] == ["chunk-000", "chunk-001", "chunk-002"]
    assert [row.videos[CAMERA].chunk for row in open_source(tmp_path / "out").rows] == [
        *[0] * 6, *[1] * 6, *[2] * 3
    ]  # fmt: skip
    assert packets(tmp_path / "out", 13) == packets(source, 1)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes with a matrix of integers, a video, pictures in tables, texts and booleans."""
    root = tmp_path_factory.mktemp("toys") / "toys"
    with (
        pytest.MonkeyPatch.context() as patch,
        DatasetWriter.create(root, 10, FEATURES, FAST) as writer,
    ):
        patch.setattr(files, "sync", lambda fd: None)
        for episode, length in enumerate((5, 3, 6, 4)):
            for i in range(length):
                writer.add_frame(frame(i + episode), "even" if episode % 2 == 0 else "odd")
            writer.end_episode()
    return root


def test_matrices_of_integers_survive(toys: Path, tmp_path: Path) -> None:
    out = made(toys, tmp_path / "out", lambda s: operations.delete(s, [0, 2]))
    assert_clean(out)
    assert_same_frames(items(out), [*items(toys)[5:8], *items(toys)[14:]])
    assert items(out)[0]["grid"].dtype == np.int64
    old, new = (pq.read_schema(root / "data/chunk-000/file-000.parquet") for root in (toys, out))
    assert new.equals(old, check_metadata=True)


def test_quantiles_are_those_of_the_frames_that_are_left(toys: Path, tmp_path: Path) -> None:
    out = made(toys, tmp_path / "out", lambda s: operations.delete(s, [2]))
    state = np.stack([item["observation.state"] for item in items(out)])
    found = read_stats(out)["observation.state"]
    for name, share in QUANTILES.items():
        low, high = (np.quantile(state, share, axis=0, method=m) for m in ("lower", "higher"))
        assert (found[name] >= low - 0.01).all()
        assert (found[name] <= high + 0.01).all()


def test_quantiles_of_pictures_are_as_if_the_rest_had_been_recorded(
    toys: Path, tmp_path: Path
) -> None:
    out = made(toys, tmp_path / "out", lambda s: operations.delete(s, [1, 3]))
    with DatasetWriter.create(tmp_path / "again", 10, FEATURES, FAST) as writer:
        for episode, length in ((0, 5), (2, 6)):
            for i in range(length):
                writer.add_frame(frame(i + episode), "even")
            writer.end_episode()
    for key in ("observation.images.top", "observation.images.wrist", "grid"):
        expected = read_stats(tmp_path / "again")[key]
        for name, value in read_stats(out)[key].items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-9, err_msg=f"{key} {name}")


def test_pictures_become_videos_beside_videos(toys: Path, tmp_path: Path) -> None:
    out = made(toys, tmp_path / "out", lambda s: operations.to_video(s, FAST))
    assert_clean(out)
    assert read_info(out).video_keys == ("observation.images.top", "observation.images.wrist")
    assert packets(out, 1) == packets(toys, 1)


def test_an_edited_dataset_is_recorded_into_again(toys: Path, tmp_path: Path) -> None:
    out = made(toys, tmp_path / "out", lambda s: operations.delete(s, [0]))
    with DatasetWriter.resume(out) as writer:
        writer.add_frame(frame(0), "more")
        writer.end_episode()
    assert_clean(out)
    assert read_info(out).total_episodes == 4


def test_videos_that_were_encoded_differently_are_merged_side_by_side(
    toys: Path, tmp_path: Path
) -> None:
    other = made(toys, tmp_path / "other", lambda s: operations.reencode(s, [], CODECS["hevc"]))
    build(
        operations.merge([open_source(toys), open_source(other), open_source(toys)]),
        new_destination(tmp_path / "out"),
    )
    assert_clean(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("videos/*/*/*"))) == 3
    assert_same_frames(items(tmp_path / "out"), [*items(toys), *items(other), *items(toys)])


def test_an_episode_that_does_not_begin_at_a_key_frame_is_encoded_again_alone(
    tmp_path: Path,
) -> None:
    root = tmp_path / "source"
    features = {key: FEATURES[key] for key in ("observation.state", "observation.images.top")}
    one_key_frame = replace(FAST, g=100, extra_options={"sc_threshold": "0"})
    with DatasetWriter.create(root, 10, features, one_key_frame) as writer:
        for i in range(12):
            writer.add_frame({key: frame(i)[key] for key in features}, "all of it")
        writer.end_episode()
    cut_in_two(root, 5)
    built = edit(root, new_destination(tmp_path / "out"), lambda s: operations.select(s, [1, 0]))
    assert built.again == {"observation.images.top": [0]}
    assert_clean(tmp_path / "out")
    assert packets(tmp_path / "out", 1) == packets(root, 0)
    for old, new in zip(items(root)[5:], items(tmp_path / "out"), strict=False):
        assert np.abs(old[TOP].astype(int) - new[TOP].astype(int)).max() <= 6


def cut_in_two(root: Path, at: int) -> None:
    """Say that a dataset's only episode is two, the second of which begins at frame ``at``."""
    info, whole = read_info(root), open_source(root).rows[0]
    span = whole.videos[TOP]
    rows = [
        replace(whole, length=at, to_index=at, videos={TOP: replace(span, to_s=at / 10)}),
        replace(
            whole,
            index=1,
            length=whole.length - at,
            from_index=at,
            videos={TOP: replace(span, from_s=at / 10)},
        ),
    ]
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    second = np.arange(whole.length) >= at
    for name, values in {
        "episode_index": second.astype(np.int64),
        "frame_index": np.arange(whole.length) - at * second,
        "timestamp": ((np.arange(whole.length) - at * second) / 10).astype(np.float32),
    }.items():
        place = table.column_names.index(name)
        table = table.set_column(place, table.field(name), pa.array(values))
    pq.write_table(table, path)
    write_episodes(root, rows, [{}, {}], 0, 0)
    write_info(root, replace(info, total_episodes=2, splits={"train": "0:2"}))


REFUSED: list[tuple[Callable[[SourceDataset], Any], str, str]] = [
    (lambda s: operations.delete(s, [7]), "dataset.unknown-episode", "episode 7"),
    (lambda s: operations.delete(s, [0, 1, 2]), "dataset.no-episodes", "3"),
    (lambda s: operations.split(s, {}), "dataset.invalid-split", "{train: 0.8, val: 0.2}"),
    (lambda s: operations.split(s, {"a": 0.9, "b": 0.9}), "dataset.invalid-split", "1.8"),
    (lambda s: operations.split(s, {"a": 0.1, "b": 0.9}), "dataset.invalid-split", "'a'"),
    (lambda s: operations.split(s, {"a": [0], "b": [0]}), "dataset.invalid-split", "episode 0"),
    (lambda s: operations.split(s, {"a": [0], "b": 0.5}), "dataset.invalid-split", "0.8"),
    (lambda s: operations.merge([s]), "dataset.too-few-sources", "merge"),
    (lambda s: operations.rename_feature(s, "acton", "x"), "dataset.unknown-feature", "'acton'"),
    (lambda s: operations.rename_feature(s, "action", "note"), "dataset.feature-exists", "'note'"),
    (lambda s: operations.rename_feature(s, "action", "a/b"), "dataset.invalid-name", "'a/b'"),
    (lambda s: operations.rename_feature(s, "index", "i"), "dataset.default-feature", "index"),
    (
        lambda s: operations.remove_features(s, ["timestamp"]),
        "dataset.default-feature",
        "timestamp",
    ),
    (lambda s: operations.remove_features(s, ["notes"]), "dataset.unknown-feature", "'notes'"),
    (lambda s: operations.set_tasks(s, {3: "x"}), "dataset.unknown-episode", "episode 3"),
    (lambda s: operations.set_tasks(s, {0: " "}), "dataset.empty-task", "task"),
    (lambda s: operations.convert(s), "dataset.current-version", "v3.0"),
]


@pytest.mark.parametrize(("make", "code", "datum"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(
    make: Callable[[SourceDataset], Any], code: str, datum: str
) -> None:
    with refuses(UsageError, code) as refused:
        make(open_source(GOLDEN / "video3ep"))
    assert datum in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "datum"),
    [
        ({"fps": 30}, "fps: 10 and 30"),
        ({"robot_type": "other"}, "robot_type: toy and other"),
        ({"action": {"dtype": "float64"}}, "float32 and float64"),
        (
            {"action": {"names": ["a", "b"]}},
            "['dx', 'dy'] and ['a', 'b']",
        ),
        ({"note": None}, "note"),
    ],
)
def test_datasets_that_differ_are_not_merged_and_it_is_said_in_what(
    source: Path, tmp_path: Path, change: dict[str, Any], datum: str
) -> None:
    import json

    second = Path(shutil.copytree(source, tmp_path / "second"))
    said = json.loads((second / "meta/info.json").read_text())
    for key, value in change.items():
        if value is None:
            del said["features"][key]
        elif isinstance(value, dict):
            said["features"][key] |= value
        else:
            said[key] = value
    (second / "meta/info.json").write_text(json.dumps(said))
    with refuses(UsageError, "dataset.sources-differ") as refused:
        operations.merge([open_source(source), open_source(second)])
    assert datum in str(refused.value)


def count_two(root: Path) -> None:
    write_info(root, replace(read_info(root), total_episodes=2, total_frames=19))


@pytest.mark.parametrize(
    "change",
    [
        lambda root: edit(root, in_place_destination(root), lambda s: operations.delete(s, [0])),
        lambda root: merge_into([GOLDEN / "video3ep", root], root.with_name("merged")),
        lambda root: split_into(root, {"a": 0.5, "b": 0.5}),
        lambda root: DatasetWriter.resume(root),
    ],
    ids=["delete", "merge", "split", "resume"],
)
def test_complete_episodes_that_info_json_does_not_count_are_not_dropped(
    source: Path, change: Callable[[Path], Any]
) -> None:
    count_two(source)
    before = sorted(source.parent.iterdir())
    with refuses(UsageError, "dataset.uncounted-episodes") as refused:
        change(source)
    assert all(n in str(refused.value) for n in ("2", "3", f"proctor data check {source} --mend"))
    assert sorted(source.parent.iterdir()) == before
    repair(source)
    change(source)


def test_episodes_of_an_append_in_progress_do_not_stop_an_edit(
    source: Path, tmp_path: Path
) -> None:
    count_two(source)
    video = {TOP: [(0, 0)]}
    (source / ".proctor").mkdir()
    StagingArea(source).intend(FileAllocation(2, [(0, 1)], (0, 1), video))
    made(source, tmp_path / "out", lambda s: operations.delete(s, [0]))
    assert read_info(tmp_path / "out").total_episodes == 1


def test_a_result_does_not_lie_inside_its_source(source: Path) -> None:
    with refuses(UsageError, "dataset.inside-source"):
        made(source, source / "out", lambda s: operations.delete(s, [0]))
    assert not (source / "out").exists()


def test_a_folder_that_exists_is_not_written_into(source: Path, tmp_path: Path) -> None:
    with refuses(UsageError, "dataset.exists"):
        new_destination(source)
    (tmp_path / "empty").mkdir()
    made(source, tmp_path / "empty", lambda s: operations.delete(s, [0]))
    assert_clean(tmp_path / "empty")


def test_a_frame_without_a_task_is_refused(source: Path, tmp_path: Path) -> None:
    path = source / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("task_index")
    none = pa.array([None] * len(table), pa.int64())
    pq.write_table(table.set_column(place, "task_index", none), path)
    with refuses(UsageError, "dataset.wrong-type") as refused:
        made(source, tmp_path / "out", lambda s: operations.delete(s, [0]))
    assert "task_index" in str(refused.value)


def test_an_episode_without_frames_is_not_kept(source: Path, tmp_path: Path) -> None:
    def with_an_empty_one(source: SourceDataset) -> EditPlan:
        whole = operations.rename_feature(source, "action", "act")
        empty = replace(whole.kept[1], row=replace(whole.kept[1].row, length=0))
        return replace(whole, kept=(whole.kept[0], empty))

    with refuses(UsageError, "dataset.empty-episode") as refused:
        made(source, tmp_path / "out", with_an_empty_one)
    assert "episode 1" in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["observation.images.top", "index"])
def test_statistics_of_nothing_are_not_gone_on_from(source: Path, tmp_path: Path, key: str) -> None:
    (path,) = (source / "meta/episodes").glob("*/*.parquet")
    table, key = pq.read_table(path), f"stats/{key}/min"
    empty = pa.array([[]] * len(table), table[key].type)
    pq.write_table(table.set_column(table.column_names.index(key), key, empty), path)
    made(source, tmp_path / "out", lambda s: operations.delete(s, [0]))
    assert read_info(tmp_path / "out").total_episodes == 2


def test_the_folder_one_stands_in_is_edited(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source)
    here = Path()
    edit(here, in_place_destination(here), lambda s: operations.delete(s, [0]))
    assert read_info(source).total_episodes == 2


def test_the_log_of_recording_sessions_keeps_its_episodes(source: Path, tmp_path: Path) -> None:
    """A replay and a resumed recording read the seeds of scenes from it."""
    log = ".proctor/recording.jsonl"
    lines = [f'{{"episode": {n}, "report": {{"seed": {seed}}}}}\n' for n, seed in
             ((0, 100), (1, 7), (1, 101), (2, 102))]  # fmt: skip
    (source / ".proctor").mkdir(exist_ok=True)
    (source / log).write_text("".join(lines) + '"damaged\n{"episode": 9')

    def seeds(root: Path) -> list[tuple[int, int]]:
        found = map(json.loads, (root / log).read_text().splitlines())
        return [(line["episode"], line["report"]["seed"]) for line in found]

    fewer = made(source, tmp_path / "fewer", lambda found: operations.delete(found, [0]))
    assert seeds(fewer) == [(0, 101), (1, 102)]
    edit(source, in_place_destination(source), lambda found: operations.delete(found, [1]))
    assert seeds(source) == [(0, 100), (1, 102)]
