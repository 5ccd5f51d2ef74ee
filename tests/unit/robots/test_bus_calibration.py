"""Offsets, ranges of motion and calibration files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.errors import UsageError, WriteFailed
from proctor.robots.base import Unit
from proctor.robots.buses.calibration import (
    MotorCalibration,
    RangeOfMotion,
    calibrate_motor,
    encoder_position,
    half_turn_offset,
    load_calibration,
    save_calibration,
)
from proctor.robots.buses.normalisation import PositionScale
from proctor.robots.buses.registers import MODELS, Motor

STS = MODELS["sts3215"]
MOTOR = Motor(1, "sts3215", Unit.DEGREES)


def test_every_half_turn_offset_fits_the_register() -> None:
    for encoder in range(4096):
        offset = half_turn_offset(encoder, STS)
        STS.register("Homing_Offset").encode(offset)
        assert (encoder - offset) % 4096 in (2046, 2047)


@pytest.mark.parametrize("encoder", [0, 1, 2047, 2048, 4095])
def test_the_encoder_is_found_behind_any_offset(encoder: int) -> None:
    for offset in range(-2047, 2048):
        assert encoder_position((encoder - offset) % 4096, offset, STS) == encoder


@given(
    start=st.integers(0, 4095),
    below=st.integers(1, 2000),
    above=st.integers(1, 2000),
)
def test_a_calibrated_range_never_crosses_the_end_of_the_encoder(
    start: int, below: int, above: int
) -> None:
    sweep = RangeOfMotion({"m": 4096})
    path = [
        *range(start, start - below, -90),
        start - below,
        *range(start - below, start + above, 90),
    ]
    for unwrapped in [*path, start + above]:
        sweep.add({"m": unwrapped % 4096})
    ends = sweep.lowest["m"], sweep.highest["m"]
    assert ends == (start - below, start + above)
    entry = calibrate_motor(MOTOR, start, ends)
    STS.register("Homing_Offset").encode(entry.homing_offset)
    for encoder in ends:
        assert entry.range_min <= (encoder - entry.homing_offset) % 4096 <= entry.range_max
    assert abs((entry.range_max - entry.range_min) - (above + below)) <= 1
    assert 0 <= entry.range_min < entry.range_max <= 4095


@pytest.mark.parametrize("start", [0, 1000, 4095])
def test_a_joint_that_turns_fully_gets_the_whole_encoder(start: int) -> None:
    entry = calibrate_motor(MOTOR, start, (start - 2500, start + 2500))
    assert (entry.range_min, entry.range_max) == (0, 4095)


def test_a_dynamixel_range_may_leave_one_turn() -> None:
    entry = calibrate_motor(Motor(2, "xl330-m288", Unit.DEGREES), 5000, (4000, 6000))
    assert entry == MotorCalibration(2, 0, -2953, 1047, 3047)


def test_unmoved_motors_are_known() -> None:
    sweep = RangeOfMotion({"a": 4096, "b": 4096})
    sweep.add({"a": 4090, "b": 5})
    sweep.add({"a": 3, "b": 5})
    assert sweep.unmoved() == ["b"]
    assert sweep.rows() == [("a", "4090", "4099", "4099"), ("b", "5", "5", "5")]


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        PositionScale("m", MOTOR, MotorCalibration(1, 0, 0, 7, 7))
    assert error.value.code == "robot.calibration-empty-range"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"a": 1}',
        '{"a": {"id": 1}}',
        '{"a": {"id": 1, "drive_mode": 0, "homing_offset": 0, "range_min": 0, "range_max": "9"}}',
        '{"a": {"id": 1, "drive_mode": true, "homing_offset": 0, "range_min": 0, "range_max": 9}}',
    ],
)
def test_a_file_that_is_not_a_calibration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "arm.json"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_calibration(path)
    assert error.value.code == "robot.calibration-invalid"


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "arm.json"
    old = {"a": MotorCalibration(1, 0, 5, 10, 20)}
    save_calibration(path, old)

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(WriteFailed):
        save_calibration(path, {"a": MotorCalibration(1, 0, 6, 10, 20)})
    assert load_calibration(path) == old
