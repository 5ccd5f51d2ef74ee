"""Frames come back in the order asked for, whatever the order they were decoded in."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from proctor.datasets.frames.decoder import Pixels
from proctor.datasets.frames.encoder import Codec, codec_named
from proctor.datasets.frames.video import FrameReader, FrameRequest, probe
from proctor.errors import DatasetError
from tests.refusals import refuses
from tests.unit.datasets.frames.moving_pictures import (
    FPS,
    MPEG4,
    make_video,
    number_of,
    predicted_from_later,
    processes,
)

av = pytest.importorskip("av", reason="PyAV is not installed (proctor[dataset])")

SLOW_KEYS = Codec("h264", g=30, preset="veryfast")
"""One key frame, and frames predicted from later ones."""


def ask(path: Path, *indices: int) -> list[FrameRequest]:
    return [FrameRequest(path, index, FPS) for index in indices]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("videos")
    codecs = {name: codec_named(name) for name in ("av1", "h264", "hevc")} | {"mpeg4": MPEG4}
    codecs |= {"slow keys": SLOW_KEYS, "open groups": predicted_from_later("open-gop=1")}
    return {
        name: make_video(folder / f"{name}.mp4", range(30), codec) for name, codec in codecs.items()
    }


@pytest.mark.parametrize("kind", ["av1", "h264", "hevc", "mpeg4", "slow keys", "open groups"])
def test_any_order_of_frames_gives_what_decoding_from_the_start_gives(
    kind: str, videos: dict[str, Path]
) -> None:
    with av.open(str(videos[kind])) as container:
        every = np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])
    assert [number_of(frame) for frame in every] == list(range(30))
    reader, rng = FrameReader(threads=2), np.random.default_rng(0)
    for _ in range(5):
        indices = rng.integers(0, 30, 9)
        assert np.array_equal(reader.read(ask(videos[kind], *indices)), every[indices])
    for index in (29, 0, 13, 12, 14, 14, 29):
        assert np.array_equal(reader.read(ask(videos[kind], index))[0], every[index])
    assert np.array_equal(reader.read(ask(videos[kind], *range(30))), every)
    reader.close()


def test_frames_of_several_files_come_in_one_array_and_few_stay_open(
    videos: dict[str, Path],
) -> None:
    reader = FrameReader(max_open=2, threads=3)
    names = ["av1", "h264", "hevc", "mpeg4"] * 4
    wanted = [FrameRequest(videos[n], i, FPS) for i, n in enumerate(names)]
    shown = reader.read(wanted)
    assert shown.shape == (16, 32, 48, 3)
    assert [number_of(frame) for frame in shown] == list(range(16))
    assert len(reader._idle) <= 2


def test_a_time_may_be_given_and_must_be_near_a_frame(videos: dict[str, Path]) -> None:
    path = videos["av1"]
    near = FrameRequest(path, 0, FPS, seconds=1.30000005)
    assert number_of(FrameReader().read([near])[0]) == 13
    off = FrameRequest(path, 0, FPS, seconds=1.33)
    with refuses(DatasetError, "video.missing-frame") as refused:
        FrameReader().read([off])
    assert "1.33" in str(refused.value)
    assert number_of(FrameReader(tolerance_s=0.05).read([off])[0]) == 13
    late = FrameRequest(path, 0, FPS, seconds=1.38)
    assert number_of(FrameReader(tolerance_s=0.05).read([late])[0]) == 14
    reader = FrameReader()
    with refuses(DatasetError, "video.missing-frame") as refused:
        reader.read(ask(path, 30))
    assert "av1.mp4" in str(refused.value)
    assert number_of(reader.read(ask(path, 29))[0]) == 29  # an error leaves nothing behind


def test_frames_can_be_scaled_while_they_are_decoded(videos: dict[str, Path]) -> None:
    whole, half = (
        FrameReader().read(ask(videos["av1"], 3, 20), Pixels(size=size))
        for size in (None, (16, 24))
    )
    assert half.shape == (2, 16, 24, 3)
    means = whole.reshape(2, 16, 2, 24, 2, 3).mean((2, 4))
    assert np.abs(half - means).max() < 3


def _numbers(reader: FrameReader, path: Path) -> list[int]:
    return [number_of(frame) for frame in reader.read(ask(path, *range(0, 30, 3)))]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_reader_works_in_other_processes_at_the_same_time(
    method: str, videos: dict[str, Path]
) -> None:
    reader = FrameReader(threads=2)
    expected = list(range(0, 30, 3))
    assert _numbers(reader, videos["h264"]) == expected
    with processes(method, 2) as pool:
        pending = [pool.apply_async(_numbers, (reader, videos["h264"])) for _ in range(4)]
        assert _numbers(reader, videos["h264"]) == expected
        assert [one.get(60) for one in pending] == [expected] * 4
    assert pickle.loads(pickle.dumps(reader)).threads == 2


def test_videos_that_are_none_are_named_in_one_line(
    videos: dict[str, Path], tmp_path: Path
) -> None:
    def code_of(path: Path) -> str:
        with pytest.raises(DatasetError) as caught:
            FrameReader().read(ask(path, 29))
        with pytest.raises(DatasetError):
            probe(path) if path.name != "flipped.mp4" else FrameReader().read(ask(path, 29))
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
        return caught.value.code

    assert code_of(tmp_path / "none.mp4") == "video.missing"
    whole = videos["h264"].read_bytes()
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole[: len(whole) // 3])
    assert code_of(cut) == "video.damaged"
    playlist = tmp_path / "playlist.mp4"
    playlist.write_text(f"#EXTM3U\n#EXTINF:1,\n{videos['h264']}\n")
    assert code_of(playlist) == "video.damaged"
    (tmp_path / "folder.mp4").mkdir()
    code_of(tmp_path / "folder.mp4")


def test_a_codec_that_cannot_be_decoded_here_is_named_with_what_to_install(
    videos: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "strange.mp4"
    path.write_bytes(videos["av1"].read_bytes().replace(b"av01", b"zz01"))
    with refuses(DatasetError, "video.codec-unavailable") as refused:
        FrameReader().read(ask(path, 0))
    assert "strange.mp4" in str(refused.value)


def test_a_pipe_in_the_place_of_a_video_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    with refuses(DatasetError, "video.damaged"):
        probe(tmp_path / "pipe.mp4")


def test_pictures_of_two_sizes_cannot_be_one_batch(videos: dict[str, Path], tmp_path: Path) -> None:
    from proctor.datasets.frames.encoder import VideoEncoder

    encoder = VideoEncoder(tmp_path / "small.mp4", Codec(), FPS, 16, 16)
    encoder.add(np.zeros((16, 16, 3), np.uint8))
    encoder.finish()
    requests = [*ask(videos["av1"], 0), *ask(tmp_path / "small.mp4", 0)]
    with refuses(DatasetError, "dataset.wrong-image-size"):
        FrameReader().read(requests)
