"""Datasets as others leave them: rows of no episode, gaps in numbers, stale statistics."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proctor import datasets
from proctor.datasets.check import check
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import new_destination
from proctor.datasets.edit.edit_plan import open_source
from proctor.datasets.edit.operations import delete, merge, recompute_statistics, select
from proctor.datasets.format.episode_stats import read_episode_stats
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tables import read_stats
from proctor.datasets.frames.encoder import CODECS, VideoEncoder
from proctor.datasets.frames.images import decode_images
from proctor.datasets.frames.video import FrameReader, FrameRequest
from proctor.datasets.writer import DatasetWriter
from proctor.errors import DatasetError, UsageError
from proctor.system import files
from tests.refusals import refuses
from tests.unit.datasets.making import copied
from tests.unit.datasets.writing.toy import AXES, FAST

FEATURES: dict[str, dict[str, Any]] = {"action": {"dtype": "float32", "shape": [2], "names": None}}
TABLE = "data/chunk-000/file-000.parquet"
TOP = "observation.images.top"


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here cuts the power."""
    monkeypatch.setattr(files, "sync", lambda fd: None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three episodes of 2, 3 and 4 frames, each with a task of its own."""
    with DatasetWriter.create(tmp_path / "root", 10, FEATURES) as writer:
        for episode in range(3):
            record(writer, episode, 2 + episode)
    return tmp_path / "root"


def record(writer: DatasetWriter, episode: int, length: int) -> None:
    for step in range(length):
        writer.add_frame({"action": np.array([episode, step], np.float32)}, f"task {episode}")
    writer.end_episode()


def set_column(root: Path, name: str, values: Any) -> None:
    table = pq.read_table(root / TABLE)
    field = table.schema.field(name)
    column = pa.array(values, field.type)
    pq.write_table(table.set_column(table.column_names.index(name), field, column), root / TABLE)


def test_rows_of_an_episode_that_was_given_up_are_not_taken_for_the_next(root: Path) -> None:
    """LeRobot leaves them where a recording is interrupted while its videos are encoded."""
    table = pq.read_table(root / TABLE)
    given_up = table.slice(0, 2)
    for name, values in (("episode_index", [3, 3]), ("index", [9, 10])):
        place, field = given_up.column_names.index(name), given_up.schema.field(name)
        given_up = given_up.set_column(place, field, pa.array(values))
    pq.write_table(pa.concat_tables([table, given_up]), root / TABLE)
    with refuses(DatasetError, "dataset.extra-rows") as refused:
        DatasetWriter.resume(root)
    assert "2" in str(refused.value)
    edit(
        root,
        new_destination(root.with_name("mended")),
        lambda source: recompute_statistics(source, pictures=False),
    )
    with DatasetWriter.resume(root.with_name("mended")) as writer:
        record(writer, 3, 2)
    frames = datasets.open(root.with_name("mended"), episodes=[3]).batch([0, 1])
    assert frames["action"].tolist() == [[3, 0], [3, 1]]
    assert not check(root.with_name("mended")).findings


def test_episodes_that_lie_in_files_by_turns_are_gone_on_with(root: Path) -> None:
    table = pq.read_table(root / TABLE)
    pq.write_table(pa.concat_tables([table.slice(0, 2), table.slice(5)]), root / TABLE)
    pq.write_table(table.slice(2, 3), root / TABLE.replace("file-000", "file-001"))
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(path)
    place = rows.column_names.index("data/file_index")
    pq.write_table(rows.set_column(place, "data/file_index", pa.array([0, 1, 0])), path)
    median = read_stats(root)["action"]["q50"]
    writer = DatasetWriter.resume(root)
    assert np.array_equal(writer._totals.stats()["action"]["q50"], median)
    record(writer, 3, 2)
    assert "not consecutive" in str(writer.close())
    frames = datasets.open(root).batch(range(11))
    assert frames["action"][:, 0].tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3]


def test_what_is_no_number_has_no_place_among_quantiles_and_stops_nobody(root: Path) -> None:
    gaps = [[math.nan, step] for step in range(8)] + [[math.nan, math.inf]]
    set_column(root, "action", gaps)
    edit(root, new_destination(root.with_name("fewer")), lambda source: delete(source, [0]))
    of_fewer = read_stats(root.with_name("fewer"))["action"]
    assert np.isnan(of_fewer["q50"][0])
    assert 4 <= of_fewer["q50"][1] <= 5  # of 2 to 7: a gap in one component costs no other
    with DatasetWriter.resume(root) as writer:
        record(writer, 3, 2)
    assert read_stats(root)["action"]["q50"][0] == 3


def test_statistics_of_tasks_that_an_edit_left_behind_are_worked_out_again(root: Path) -> None:
    """LeRobot numbers tasks anew when it deletes and splits, and leaves their statistics."""
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for name in ("min", "max", "mean", "q50"):
        place = table.column_names.index(f"stats/task_index/{name}")
        table = table.set_column(place, table.schema.field(place), pa.array([[7.0]] * 3))
    pq.write_table(table, path)
    out = root.with_name("fewer")
    edit(root, new_destination(out), lambda source: delete(source, [0]))
    found = [stats["task_index"] for stats in read_episode_stats(out, read_info(out))]
    assert [[stats[name].item() for name in ("min", "max", "mean")] for stats in found] == [
        [0, 0, 0],
        [1, 1, 1],
    ]


def test_episodes_of_which_pixels_were_counted_weigh_no_more_than_others(tmp_path: Path) -> None:
    """LeRobot counts them where it encodes videos as frames come; the last episode is not so."""
    plain, streamed = (copied("video3ep", tmp_path / name) for name in ("plain", "streamed"))
    path = streamed / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    place = table.column_names.index(f"stats/{TOP}/count")
    counts = pa.array([[12 * 64 * 96], [7 * 64 * 96], [9]])
    pq.write_table(table.set_column(place, table.schema.field(place), counts), path)
    found = []
    for root in (plain, streamed):
        edit(
            root,
            new_destination(tmp_path / f"{root.name}_fewer"),
            lambda source: delete(source, [0]),
        )
        with DatasetWriter.resume(root) as writer:
            resumed = writer._totals.stats()[TOP]
        found.append((read_stats(tmp_path / f"{root.name}_fewer")[TOP], resumed))
    for of_plain, of_streamed in zip(*found, strict=True):
        assert of_plain["count"] == of_streamed["count"]
        assert np.array_equal(of_plain["mean"], of_streamed["mean"])


def without_frame(path: Path, gone: int) -> None:
    """Leave a frame out of a video; all others are shown when they were."""
    copy = path.with_suffix(".copy.mp4")
    with av.open(str(path)) as video, av.open(str(copy), "w") as into:
        stream = into.add_stream_from_template(video.streams.video[0], opaque=True)
        for number, packet in enumerate(video.demux(video=0)):
            if number != gone and packet.dts is not None:
                packet.stream = stream
                into.mux(packet)
    copy.replace(path)


def test_a_frame_that_is_missing_before_an_episode_does_not_shift_its_pictures(
    tmp_path: Path,
) -> None:
    features = {TOP: {"dtype": "video", "shape": [32, 32, 3], "names": AXES}}
    with DatasetWriter.create(tmp_path / "all", 10, features, replace(FAST, g=1)) as writer:
        for step in range(9):
            writer.add_frame({TOP: np.full((32, 32, 3), 20 * step, np.uint8)}, "go")
            if step % 3 == 2:
                writer.end_episode()
    without_frame(tmp_path / f"all/videos/{TOP}/chunk-000/file-000.mp4", 1)
    made = edit(
        tmp_path / "all", new_destination(tmp_path / "one"), lambda source: select(source, [1])
    )
    assert made.again == {TOP: [0]}
    shades = datasets.open(tmp_path / "one").batch([0, 1, 2])[TOP].mean(axis=(1, 2, 3))
    assert np.abs(shades - [60, 80, 100]).max() < 5


def test_the_last_column_of_an_odd_width_is_a_picture_too(tmp_path: Path) -> None:
    """FFmpeg leaves it as the memory was, where the height is even."""
    video = VideoEncoder(tmp_path / "odd.mp4", CODECS["av1"], 10, 64, 67)
    video.add(np.full((64, 67, 3), [200, 120, 60], np.uint8))
    video.finish()
    picture = FrameReader().read([FrameRequest(tmp_path / "odd.mp4", 0, 10)])[0]
    assert np.abs(picture.astype(int) - [200, 120, 60]).max() <= 4


def test_distances_of_16_bits_are_not_read_as_shades_of_8() -> None:
    encoder = av.CodecContext.create("png", "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = 4, 2, "gray16be", 1
    shades = np.arange(8, dtype=np.uint16).reshape(2, 4) * 5000
    picture = av.VideoFrame.from_ndarray(shades, format="gray16be")
    content = b"".join(map(bytes, (*encoder.encode(picture), *encoder.encode(None))))
    with refuses(DatasetError, "dataset.unsupported-image") as refused:
        decode_images("here", [content], (2, 4, 1))
    assert "16" in str(refused.value)


def test_one_number_is_written_with_the_axis_that_lerobot_asks_for(tmp_path: Path) -> None:
    features = FEATURES | {"reward": {"dtype": "float32", "shape": [], "names": None}}
    with DatasetWriter.create(tmp_path / "new", 10, features) as writer:
        writer.add_frame({"action": np.zeros(2, np.float32), "reward": np.float32(0.5)}, "go")
        writer.end_episode()
    assert read_info(tmp_path / "new").shape("reward") == (1,)
    assert datasets.open(tmp_path / "new")[0]["reward"] == 0.5


def say_depth(root: Path, **block: Any) -> Path:
    path = root / "meta/info.json"
    said = json.loads(path.read_text())
    said["features"][TOP]["info"] = {"is_depth_map": True} | block
    path.write_text(json.dumps(said))
    return root


@pytest.mark.parametrize(
    ("block", "datum"),
    [
        ({"video.depth_max": 4.0}, "4.0 m"),
        ({"depth_unit": "m"}, "in m)"),
        ({"is_depth_map": False}, TOP),
    ],
)
def test_codes_of_other_distances_are_not_merged(
    tmp_path: Path, block: dict[str, Any], datum: str
) -> None:
    one = open_source(say_depth(copied("video3ep", tmp_path / "one")))
    other = open_source(say_depth(copied("video3ep", tmp_path / "other"), **block))
    with refuses(UsageError, "dataset.sources-differ") as refused:
        merge([one, other])
    assert datum in str(refused.value)


def test_no_frames_are_a_batch_of_none(tmp_path: Path) -> None:
    root = copied("video3ep", tmp_path / "video3ep")
    batch = datasets.open(root, delta_timestamps={TOP: [0.0, 0.1]}).batch([])
    assert batch[TOP].shape == (0, 2, 64, 96, 3)
    assert batch["action"].shape == (0, 2)


@pytest.mark.parametrize("episodes", [[True, False, True], [1.5]])
def test_what_is_no_number_of_an_episode_chooses_none(root: Path, episodes: Any) -> None:
    with refuses(DatasetError, "dataset.invalid-episodes"):
        datasets.open(root, episodes=episodes)
