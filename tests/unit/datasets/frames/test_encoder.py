"""Videos are encoded as pictures come, as LeRobot would, and never half."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from proctor.datasets.frames.encoder import CODECS, Codec, VideoEncoder, codec_named
from proctor.datasets.frames.video import probe
from proctor.errors import DatasetError
from tests.refusals import refuses
from tests.unit.datasets.frames.moving_pictures import make_video, picture

pytest.importorskip("av", reason="PyAV is not installed (proctor[dataset])")


@pytest.mark.parametrize("name", ["av1", "h264", "hevc"])
def test_every_codec_makes_a_video_of_its_kind(name: str, tmp_path: Path) -> None:
    facts = probe(make_video(tmp_path / "a.mp4", range(7), codec_named(name)))
    assert (facts.codec, facts.pix_fmt, facts.height, facts.width) == (name, "yuv420p", 32, 48)
    assert (facts.fps, facts.n_frames, facts.duration_s, facts.has_audio) == (10, 7, 0.7, False)


def test_the_defaults_are_lerobots() -> None:
    block = Codec().info_block(64, 96, 10)
    assert block == {
        "video.height": 64, "video.width": 96, "video.codec": "av1", "video.pix_fmt": "yuv420p",
        "video.fps": 10, "video.channels": 3, "has_audio": False, "video.g": 2, "video.crf": 30,
        "video.preset": 12, "video.fast_decode": 0, "video.video_backend": "pyav",
        "video.extra_options": {}, "is_depth_map": False,
    }  # fmt: skip
    json.dumps(block)


@pytest.mark.parametrize("name", ["av1", "h264", "hevc"])
def test_the_same_pictures_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    one, again = (
        make_video(tmp_path / f"{time}.mp4", range(12), codec_named(name)).read_bytes()
        for time in range(2)
    )
    assert one == again


def test_the_bytes_of_av1_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    one = make_video(tmp_path / "one.mp4", range(12)).read_bytes()
    assert make_video(tmp_path / "four.mp4", range(12), Codec(threads=4)).read_bytes() == one


def test_a_video_has_its_name_only_when_complete_and_an_abandoned_one_leaves_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "videos" / "a.mp4"
    encoder = VideoEncoder(path, Codec(), 10, 32, 48)
    for number in range(40):
        encoder.add(picture(number))
    assert [file.name for file in path.parent.iterdir()] == ["a.mp4.part"]
    encoder.abandon()
    assert list(path.parent.iterdir()) == []


def test_encoders_say_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("av1", "h264", "hevc"):
        make_video(tmp_path / f"{name}.mp4", range(3), codec_named(name))
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_encoded_is_said_in_one_line(tmp_path: Path) -> None:
    with refuses(DatasetError, "video.unknown-codec") as refused:
        codec_named("h265")
    assert "'h265'" in str(refused.value)
    with refuses(DatasetError, "video.codec-unavailable") as refused:
        VideoEncoder(tmp_path / "a.mp4", Codec("no_such"), 10, 32, 48)
    assert "'no_such'" in str(refused.value)
    odd = VideoEncoder(tmp_path / "odd.mp4", CODECS["h264"], 10, 33, 47)
    with refuses(DatasetError, "video.unsupported-image") as refused:
        odd.add(np.zeros((33, 47, 3), np.uint8))
    assert "yuv420p" in str(refused.value)
    odd.abandon()
    with refuses(DatasetError, "video.empty"):
        VideoEncoder(tmp_path / "none.mp4", Codec(), 10, 32, 48).finish()
    assert list(tmp_path.iterdir()) == []
