"""Distances survive the video: the codes to the bit, the distances as LeRobot reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from proctor.datasets.frames.depth import CODES, DepthEncoder, DepthScale, DepthUnit
from proctor.datasets.frames.video import FrameReader, FrameRequest, probe
from proctor.errors import DatasetError
from tests.refusals import refuses

pytest.importorskip("av", reason="PyAV is not installed (proctor[dataset])")

# LeRobot's own numbers (7427f318).
MILLIMETRES = np.array([[0, 10, 500, 1000, 5000, 10000, 20000]], np.uint16)
LEROBOT_CODES = [[0, 0, 397, 755, 2689, 4095, 4095]]
LEROBOT_MILLIMETRES = [[10, 10, 500, 1000, 5001, 10000, 10000]]
LEROBOT_METRES = [
    [0.010000228881835938, 0.010000228881835938, 0.49966859817504883, 0.9995512962341309,
     5.000950813293457, 10.0, 10.0]
]  # fmt: skip


def test_codes_and_distances_are_lerobots() -> None:
    scale = DepthScale()
    codes = scale.encode(MILLIMETRES)
    assert codes.tolist() == LEROBOT_CODES
    assert scale.encode((MILLIMETRES / 1000).astype(np.float32)).tolist() == LEROBOT_CODES
    assert scale.decode(codes).tolist() == LEROBOT_MILLIMETRES
    # An exponential's last bit is the machine's: LeRobot's own differs between numpy and torch.
    metres = scale.decode(codes, DepthUnit.METRE)
    np.testing.assert_allclose(metres, LEROBOT_METRES, rtol=0, atol=3e-6)
    assert scale.decode(codes).dtype == np.float32


def test_every_code_comes_back() -> None:
    every = np.arange(4096, dtype=np.uint16)
    for scale in (DepthScale(), DepthScale(0.2, 3.0, logarithmic=False)):
        assert np.array_equal(scale.encode(scale.decode(every, DepthUnit.METRE)), every)


def test_what_was_not_measured_is_the_nearest() -> None:
    depth = np.array([0.0, np.nan, -1.0, np.inf], np.float32)
    assert DepthScale().encode(depth).tolist() == [0, 0, 0, 4095]


@pytest.mark.parametrize("width", [48, 34])
def test_a_depth_video_loses_nothing(width: int, tmp_path: Path) -> None:
    rng, scale = np.random.default_rng(0), DepthScale()
    frames = rng.integers(0, 12_000, (5, 32, width, 1)).astype(np.uint16)
    path = tmp_path / "depth.mp4"
    encoder = DepthEncoder(path, 10, 32, width)
    for frame in frames:
        encoder.add(scale.encode(frame))
    encoder.finish()
    facts = probe(path)
    assert (facts.codec, facts.pix_fmt, facts.n_frames) == ("hevc", "gray12le", 5)
    codes = FrameReader().read([FrameRequest(path, i, 10) for i in (4, 0, 2)], CODES)
    assert codes.shape == (3, 32, width, 1)
    assert np.array_equal(codes, scale.encode(frames[[4, 0, 2]]))


def test_the_scale_is_read_back_from_what_info_json_says() -> None:
    scale = DepthScale(0.1, 4.0, 0.5)
    entry = {"info": scale.info_block(32, 48, 10, DepthUnit.MILLIMETRE)}
    assert entry["info"]["is_depth_map"]
    assert entry["info"]["depth_unit"] == "mm"
    assert DepthScale.of(entry) == scale
    assert DepthScale.of({}) == DepthScale()


@pytest.mark.parametrize(
    "block", [{"video.depth_min": 11}, {"video.shift": -1}, {"video.depth_max": "far"}]
)
def test_a_scale_that_makes_no_sense_is_refused(block: dict[str, object]) -> None:
    with refuses(DatasetError, "dataset.invalid-depth") as refused:
        DepthScale.of({"info": block})
    assert "video.depth_min" in str(refused.value)
