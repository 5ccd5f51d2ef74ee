"""Videos put together and cut apart keep every packet as it was."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from proctor.datasets.frames.encoder import CODECS, codec_named
from proctor.datasets.frames.packets import (
    DifferentStreams,
    NotAtKeyFrame,
    Piece,
    concatenate,
    extract,
    splice,
)
from proctor.datasets.frames.video import FrameReader, FrameRequest, probe
from proctor.errors import DatasetError
from tests.refusals import refuses
from tests.unit.datasets.frames.moving_pictures import (
    FPS,
    MPEG4,
    make_video,
    number_of,
    predicted_from_later,
)

av = pytest.importorskip("av", reason="PyAV is not installed (proctor[dataset])")


def packets(path: Path) -> list[bytes]:
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


def numbers(path: Path) -> list[int]:
    requests = [FrameRequest(path, i, FPS) for i in range(probe(path).n_frames)]
    return [number_of(frame) for frame in FrameReader().read(requests)]


@pytest.mark.parametrize("name", ["av1", "h264", "hevc", "mpeg4"])
def test_episodes_put_together_and_cut_out_again_are_the_same_packets(
    name: str, tmp_path: Path
) -> None:
    lengths = {"a": range(5), "b": range(10, 18), "c": range(20, 27)}
    codec = MPEG4 if name == "mpeg4" else CODECS[name]
    parts = [make_video(tmp_path / f"{part}.mp4", of, codec) for part, of in lengths.items()]
    whole = tmp_path / "whole.mp4"
    assert concatenate(parts, whole) == [(0, 0.5), (0.5, 1.3), (1.3, 2.0)]
    assert packets(whole) == [packet for part in parts for packet in packets(part)]
    assert numbers(whole) == [*range(5), *range(10, 18), *range(20, 27)]
    assert probe(whole).duration_s == pytest.approx(2.0)

    kept = tmp_path / "kept.mp4"
    assert extract(whole, [(0, 5), (13, 20)], kept) == [(0, 0.5), (0.5, 1.2)]
    assert packets(kept) == packets(parts[0]) + packets(parts[2])
    assert numbers(kept) == [*range(5), *range(20, 27)]


def test_pieces_may_come_in_any_order_and_from_several_files(tmp_path: Path) -> None:
    a = make_video(tmp_path / "a.mp4", range(6))
    b = make_video(tmp_path / "b.mp4", range(10, 16))
    spans = splice(
        [Piece(b, 4), Piece(a, 2, 4), Piece(a, 0, 2), Piece(b, 0, 2)], tmp_path / "c.mp4"
    )
    assert spans == [(0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8)]
    assert numbers(tmp_path / "c.mp4") == [14, 15, 2, 3, 0, 1, 10, 11]


def test_a_span_that_does_not_begin_at_a_key_frame_is_refused_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    source = make_video(tmp_path / "a.mp4", range(8))
    with refuses(NotAtKeyFrame, "video.not-at-key-frame") as refused:
        extract(source, [(0, 2), (3, 6)], tmp_path / "b.mp4")
    assert "a.mp4" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]
    extract(source, [(2, 5)], tmp_path / "b.mp4")  # an end needs no key frame where none is needed
    assert numbers(tmp_path / "b.mp4") == [2, 3, 4]


def test_frames_that_later_ones_are_needed_for_are_not_cut_off(tmp_path: Path) -> None:
    source = make_video(tmp_path / "a.mp4", range(24), predicted_from_later("open-gop=0"))
    refused = []
    for stop in range(13, 24):
        try:
            extract(source, [(12, stop)], tmp_path / "b.mp4")
        except NotAtKeyFrame:
            refused.append(stop)
        else:
            assert numbers(tmp_path / "b.mp4") == list(range(12, stop))
    assert 0 < len(refused) < 11


def test_groups_that_lean_on_each_other_are_not_cut_apart(tmp_path: Path) -> None:
    source = make_video(tmp_path / "a.mp4", range(24), predicted_from_later("open-gop=1"))
    with refuses(NotAtKeyFrame, "video.not-at-key-frame") as refused:
        extract(source, [(6, 24)], tmp_path / "b.mp4")
    assert "frame 6" in str(refused.value)
    with refuses(NotAtKeyFrame, "video.not-at-key-frame") as refused:
        extract(source, [(0, 6)], tmp_path / "b.mp4")
    assert "frame 6" in str(refused.value)
    extract(source, [(0, 24)], tmp_path / "b.mp4")
    assert numbers(tmp_path / "b.mp4") == list(range(24))


def test_what_cannot_be_copied_is_said_in_one_line(tmp_path: Path) -> None:
    a = make_video(tmp_path / "a.mp4", range(4))
    b = make_video(tmp_path / "b.mp4", range(4), codec_named("h264"))
    with refuses(DifferentStreams, "video.different-streams") as refused:
        concatenate([a, b], tmp_path / "c.mp4")
    assert "b.mp4" in str(refused.value)
    with refuses(DatasetError, "video.missing-frame") as refused:
        extract(a, [(2, 6)], tmp_path / "c.mp4")
    assert "a.mp4" in str(refused.value)
    with refuses(DatasetError, "video.missing-frame") as refused:
        extract(a, [(8, 9)], tmp_path / "c.mp4")
    assert "a.mp4" in str(refused.value)
    with refuses(DatasetError, "video.missing"):
        concatenate([a, tmp_path / "gone.mp4"], tmp_path / "c.mp4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "b.mp4"]


def test_a_full_disk_is_said_as_such_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files is as good as a full disk, and needs a process of its own."""
    program = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path.cwd())!r})
import numpy as np
from pathlib import Path
from proctor.datasets.frames.encoder import CODECS, VideoEncoder
from proctor.datasets.frames.packets import concatenate
folder, rng = Path({str(tmp_path)!r}), np.random.default_rng(0)
def noise(path, frames):
    encoder = VideoEncoder(path, CODECS["h264"], 10, 96, 96)
    try:
        for _ in range(frames):
            encoder.add(rng.integers(0, 255, (96, 96, 3), dtype=np.uint8))
        encoder.finish()
    except OSError as error:
        encoder.abandon()
        print(error.errno)
    return path
a = noise(folder / "a.mp4", 40)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (a.stat().st_size + 1000,) * 2)
noise(folder / "b.mp4", 120)
for parts in ([a, a], [a, a, a, a]):
    try:
        concatenate(parts, folder / "c.mp4")
    except OSError as error:
        print(error.errno)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(errno.EFBIG)] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_no_frames_are_no_video(tmp_path: Path) -> None:
    with refuses(DatasetError, "video.empty") as refused:
        extract(tmp_path / "a.mp4", [(0, 2), (3, 3)], tmp_path / "b.mp4")
    assert "3" in str(refused.value)
    assert list(tmp_path.iterdir()) == []
