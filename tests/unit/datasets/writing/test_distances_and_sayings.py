"""Depth cameras and columns of language: recorded, gone on with, read back, edited, checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor import datasets
from proctor.datasets.check import check
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import new_destination
from proctor.datasets.edit.operations import delete
from proctor.datasets.format.info import DEFAULT_FEATURES, Info
from proctor.datasets.format.tables import read_stats
from proctor.datasets.frames.depth import DepthScale
from proctor.datasets.frames.video import probe
from proctor.datasets.writer import DatasetWriter
from proctor.datasets.writing.staged_episode import StagedEpisodeWriter
from proctor.errors import DatasetError
from proctor.features import Array
from tests.refusals import refuses
from tests.unit.datasets.writing.toy import AXES, FAST

TOP, FAR, NEAR = (f"observation.images.{name}" for name in ("top", "far", "near"))
HEIGHT, WIDTH = 16, 32


def camera(channels: int = 1, **block: Any) -> dict[str, Any]:
    entry = {"dtype": "video", "shape": [HEIGHT, WIDTH, channels], "names": AXES}
    return entry | ({"info": {"is_depth_map": True} | block} if channels == 1 else {})


LANGUAGE = {"dtype": "language", "shape": [1], "names": None}
FEATURES: dict[str, dict[str, Any]] = {
    "action": {"dtype": "float32", "shape": [2], "names": None},
    TOP: camera(3),
    FAR: camera(depth_unit="m"),
    NEAR: camera(**{"video.depth_max": 2.0}),
    "language_persistent": LANGUAGE,
    "language_events": LANGUAGE,
}
INFO = Info(fps=10, features=FEATURES | DEFAULT_FEATURES)
SUBTASK = {"role": "assistant", "content": "grasp it", "style": "subtask", "timestamp": 0.5}
QUESTION = {"role": "user", "content": "where?", "style": "vqa", "camera": TOP}
CALL = {"role": "assistant", "tool_calls": [{"name": "say", "arguments": {"text": "hé"}}]}


def metres(i: int) -> Array:
    found: Array = np.linspace(0.02, 1.5 + 0.1 * i, HEIGHT * WIDTH, dtype=np.float32)
    return found.reshape(HEIGHT, WIDTH, 1)


def frame(i: int) -> dict[str, Any]:
    return {
        "action": np.array([i, 0], np.float32),
        TOP: np.full((HEIGHT, WIDTH, 3), 40 * i, np.uint8),
        FAR: metres(i),
        NEAR: (1000 * metres(i)).astype(np.uint16),
        "language_persistent": [SUBTASK],
        "language_events": [QUESTION, CALL] if i == 1 else [],
    }


def record(writer: DatasetWriter, *lengths: int) -> None:
    with writer:
        for length in lengths:
            for i in range(length):
                writer.add_frame(frame(i), task="pick")
            writer.end_episode()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded") / "set"
    record(DatasetWriter.create(root, 10, FEATURES, FAST), 3, 2)
    record(DatasetWriter.resume(root), 2)
    return root


def test_distances_are_read_as_they_were_measured(recorded: Path) -> None:
    ds = datasets.open(recorded)
    batch = ds.batch(range(len(ds)))
    expected = 1000 * np.stack([metres(i) for i in (0, 1, 2, 0, 1, 0, 1)])
    np.testing.assert_allclose(batch[FAR], expected, atol=0.51 + 10_000 * 0.33 / 4096)
    near = DepthScale(furthest=2.0)
    np.testing.assert_array_equal(batch[NEAR], near.decode(near.encode(expected.astype(np.uint16))))
    assert np.abs(batch[NEAR] - np.minimum(expected, 2000)).max() < 1.5  # finer: it ends nearer


def test_statistics_of_distances_are_those_that_readers_see(recorded: Path) -> None:
    ds = datasets.open(recorded)
    seen, stats = ds.batch(range(len(ds))), ds.stats
    for key in (FAR, NEAR):
        values = seen[key].astype(np.float64)
        assert stats[key]["mean"].shape == (1, 1, 1)
        assert stats[key]["count"].tolist() == [7]
        for name, found in (("min", values.min()), ("max", values.max()), ("mean", values.mean())):
            np.testing.assert_allclose(stats[key][name].item(), found, atol=0.6)
        np.testing.assert_allclose(stats[key]["std"].item(), values.std(), rtol=1e-3)
    of_file = read_stats(recorded)[FAR]  # there, in the unit that was recorded
    np.testing.assert_allclose(1000 * of_file["mean"], stats[FAR]["mean"])


def test_what_was_said_is_read_as_it_was_said(recorded: Path) -> None:
    ds = datasets.open(recorded)
    said = ds.batch([0, 1, 4])
    full = {"content": None, "style": None, "camera": None, "tool_calls": None}
    assert said["language_events"] == [
        [],
        [full | QUESTION, full | CALL],
        [full | QUESTION, full | CALL],
    ]
    assert said["language_persistent"] == [[full | SUBTASK]] * 3


def test_info_json_says_what_lerobot_looks_for(recorded: Path) -> None:
    features = json.loads((recorded / "meta/info.json").read_text())["features"]
    far = features[FAR]["info"]
    assert (far["is_depth_map"], far["depth_unit"], far["video.pix_fmt"]) == (True, "m", "gray12le")
    assert features[NEAR]["info"]["depth_unit"] == "mm"
    assert features[NEAR]["info"]["video.depth_max"] == 2.0
    assert features["language_events"] == LANGUAGE
    assert features[TOP]["info"]["video.codec"] == "h264"
    (video,) = recorded.glob(f"videos/{TOP}/*/*.mp4")  # resumed with the codec of light
    assert probe(video).codec == "h264"


def test_it_is_checked_and_edited(recorded: Path, tmp_path: Path) -> None:
    assert check(recorded).findings == ()
    place = new_destination(tmp_path / "edited")
    edit(recorded, place, lambda source: delete(source, [0]))
    before, after = datasets.open(recorded), datasets.open(tmp_path / "edited")
    assert check(tmp_path / "edited").findings == ()
    kept, found = before.batch(range(3, 7)), after.batch(range(4))
    for key in (FAR, NEAR):
        np.testing.assert_array_equal(found[key], kept[key])
    assert found["language_events"] == kept["language_events"]


@pytest.mark.parametrize(
    ("key", "value", "code", "datum"),
    [
        (FAR, metres(0).astype(np.uint16), "dataset.wrong-value", "float32 [16, 32, 1] in m"),
        (NEAR, metres(0), "dataset.wrong-value", "uint16 [16, 32, 1] in mm"),
        (FAR, np.full((HEIGHT, WIDTH, 1), np.nan, np.float32), "dataset.not-finite", "nan"),
        ("language_events", "stop!", "dataset.invalid-language", "str"),
        ("language_events", ["stop!"], "dataset.invalid-language", "'stop!'"),
        ("language_events", [{"content": "stop!"}], "dataset.invalid-language", "role"),
        ("language_events", [{"role": "user", "text": "x"}], "dataset.invalid-language", "'text'"),
        ("language_events", [SUBTASK], "dataset.invalid-language", "'timestamp'"),
        (
            "language_events",
            [{"role": "a", "style": "plan"}],
            "dataset.invalid-language",
            "language_persistent",
        ),
        ("language_events", [{"role": "a", "style": "vqa"}], "dataset.invalid-language", "vqa"),
        ("language_events", [QUESTION | {"camera": "tip"}], "dataset.invalid-language", "'tip'"),
        (
            "language_events",
            [{"role": "a", "tool_calls": [{1, 2}]}],
            "dataset.invalid-language",
            "tool_calls",
        ),
        ("language_persistent", [{"role": "a"}], "dataset.invalid-language", "timestamp"),
    ],
)
def test_what_is_neither_is_refused_and_the_take_goes_on(
    key: str, value: Any, code: str, datum: str, tmp_path: Path
) -> None:
    take = StagedEpisodeWriter(tmp_path / "take", INFO, FAST)
    with refuses(DatasetError, code) as refused:
        take.add_frame(frame(0) | {key: value}, "pick")
    assert str(refused.value).startswith(f"{key}: ")
    assert datum in str(refused.value)
    assert (take.length, list(tmp_path.glob("take/*.mp4*"))) == (0, [])
    take.discard()


def test_an_episode_may_have_one_frame(tmp_path: Path) -> None:
    take = StagedEpisodeWriter(tmp_path / "take", INFO, FAST)
    take.add_frame(frame(0), "pick")
    assert probe(take.finish().video(FAR)).n_frames == 1


@pytest.mark.parametrize(
    ("entry", "code", "datum"),
    [
        ({"said": LANGUAGE}, "dataset.unsupported-feature", "said"),
        ({FAR: camera() | {"dtype": "image"}}, "dataset.unsupported-feature", FAR),
        ({FAR: camera(depth_unit="inch")}, "dataset.invalid-depth", "'inch'"),
        ({FAR: camera(**{"video.depth_max": 0.0})}, "dataset.invalid-depth", "0.0 m"),
    ],
)
def test_features_that_nobody_could_read_are_refused(
    entry: dict[str, Any], code: str, datum: str, tmp_path: Path
) -> None:
    with refuses(DatasetError, code) as refused:
        DatasetWriter.create(tmp_path / "set", 10, entry, FAST)
    assert datum in str(refused.value)
    assert not (tmp_path / "set").exists()


def test_depth_of_another_format_is_not_gone_on_with(recorded: Path, tmp_path: Path) -> None:
    root = new_destination(tmp_path / "set")
    edit(recorded, root, lambda source: delete(source, [0]))
    path = tmp_path / "set/meta/info.json"
    path.write_text(path.read_text().replace("gray12le", "yuv420p12le"))
    with refuses(DatasetError, "dataset.unsupported-feature") as refused:
        DatasetWriter.resume(tmp_path / "set")
    assert "'yuv420p12le'" in str(refused.value)
