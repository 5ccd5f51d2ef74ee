"""Calibration of motors: LeRobot's file, the half-turn offset and the range of motion.

A file is JSON with four spaces of indentation. It has one object per motor, in bus order, with the
keys id, drive_mode, homing_offset, range_min and range_max.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from proctor.errors import UsageError, WriteFailed
from proctor.robots.buses.registers import BusProtocol, Motor, MotorModel
from proctor.system.files import atomic_write


@dataclass(frozen=True)
class MotorCalibration:
    """Calibration of one motor; positions are ticks after the homing offset."""

    id: int
    drive_mode: int
    """1 reverses the two percent units of a Feetech motor."""
    homing_offset: int
    range_min: int
    range_max: int


Calibration = Mapping[str, MotorCalibration]
"""Motor name -> its calibration."""


INVALID_FILE = "robot.calibration-invalid"
"""Error code of a file that a new calibration replaces."""


def load_calibration(path: Path) -> dict[str, MotorCalibration]:
    """Read a calibration file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", code="robot.calibration-unreadable"
        ) from error
    except (ValueError, RecursionError) as error:
        raise _bad_file(path, str(error)) from error
    if not isinstance(content, dict):
        raise _bad_file(path, "it is not an object")
    return {name: _parse(path, name, entry) for name, entry in content.items()}


def save_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration file; readers see the whole old file or the whole new one."""
    content = {name: asdict(entry) for name, entry in calibration.items()}
    try:
        atomic_write(path, json.dumps(content, indent=4).encode())
    except OSError as error:
        raise WriteFailed(path, error) from error


def _parse(path: Path, name: str, entry: Any) -> MotorCalibration:
    keys = [field.name for field in fields(MotorCalibration)]
    if not isinstance(entry, dict) or set(entry) != set(keys):
        raise _bad_file(path, f"{name} must have the keys {', '.join(keys)}")
    for key in keys:
        if not isinstance(entry[key], int) or isinstance(entry[key], bool):
            raise _bad_file(path, f"{name}.{key} must be an integer, not {entry[key]!r}")
    if entry["range_min"] >= entry["range_max"]:
        ends = f"{entry['range_min']} to {entry['range_max']}"
        raise _bad_file(path, f"{name} has the range {ends}, which is empty")
    if entry["drive_mode"] not in (0, 1):
        raise _bad_file(path, f"{name}.drive_mode must be 0 or 1, not {entry['drive_mode']}")
    return MotorCalibration(**entry)


def _bad_file(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"{path} is not a calibration file: {reason}; run proctor calibrate", code=INVALID_FILE
    )


def differences(file: Calibration, motors: Calibration, *, drive_mode: bool) -> list[str]:
    """Describe where the calibration of the file and of the motors differ; empty if nowhere.

    Args:
        file: the calibration of the file.
        motors: the calibration that the motors hold.
        drive_mode: compare it too; Feetech motors do not store it.
    """
    keys = ["homing_offset", "range_min", "range_max"] + ["drive_mode"] * drive_mode
    found = []
    for name, held in motors.items():
        if name not in file:
            found.append(f"{name} is not in the file")
            continue
        for key in keys:
            of_file, of_motor = getattr(file[name], key), getattr(held, key)
            if of_file != of_motor:
                found.append(f"{name}.{key} is {of_motor} in the motor, {of_file} in the file")
    return found


def half_turn_offset(encoder: int, model: MotorModel) -> int:
    """Return the homing offset with which ``encoder`` reads as the middle of the range.

    A Feetech motor shows encoder - offset modulo one turn and stores magnitudes up to 2047, so an
    offset of half a turn is stored one tick smaller. A Dynamixel motor shows encoder + offset.
    """
    middle = (model.resolution - 1) // 2
    if model.protocol is BusProtocol.DYNAMIXEL:
        return middle - encoder
    half = model.resolution // 2
    offset = (encoder - middle + half) % model.resolution - half
    return max(offset, 1 - half)


def encoder_position(present: int, offset: int, model: MotorModel) -> int:
    """Return the encoder of a motor that shows ``present`` with the homing offset ``offset``."""
    if model.protocol is BusProtocol.DYNAMIXEL:
        return present - offset
    return (present + offset) % model.resolution


def calibrate_motor(motor: Motor, middle: int, sweep: tuple[int, int]) -> MotorCalibration:
    """Return the calibration of a motor that was moved through its range.

    The offset is chosen after the sweep. It puts ``middle`` at the half turn, unless the range
    would then cross the end of the encoder; in that case it puts the middle of the range there.

    Args:
        motor: the motor.
        middle: unwrapped encoder position of the arm's middle pose.
        sweep: lowest and highest unwrapped encoder position.
    """
    turn = motor.model.resolution
    half = (turn - 1) // 2
    lowest, highest = sweep
    if motor.model.protocol is BusProtocol.DYNAMIXEL:
        offset = half_turn_offset(middle, motor.model)
        return MotorCalibration(motor.id, 0, offset, lowest + offset, highest + offset)
    if highest - lowest >= turn - 1:
        return MotorCalibration(motor.id, 0, half_turn_offset(middle, motor.model), 0, turn - 1)
    if lowest - middle + half < 0 or highest - middle + half > turn - 1:
        middle = (lowest + highest) // 2
    offset = half_turn_offset(middle, motor.model)
    shown = (middle - offset) % turn  # half, or one less where the offset could not be stored
    low = max(lowest - middle + shown, 0)
    return MotorCalibration(motor.id, 0, offset, low, min(highest - middle + shown, turn - 1))


class RangeOfMotion:
    """Lowest and highest position of motors while a person moves them.

    Positions are followed across the end of the encoder: a step of more than half a turn between
    two readings is the seam between the last tick and 0.
    """

    def __init__(self, resolutions: Mapping[str, int]) -> None:
        self._resolutions = dict(resolutions)
        self._last: dict[str, int] = {}
        self._unwrapped: dict[str, int] = {}
        self.lowest: dict[str, int] = {}
        self.highest: dict[str, int] = {}

    def add(self, positions: Mapping[str, int]) -> None:
        """Take one reading of every motor."""
        for name, position in positions.items():
            self._unwrapped[name] = self._follow(name, position)
            self._last[name] = position
            now = self._unwrapped[name]
            self.lowest[name] = min(now, self.lowest.get(name, now))
            self.highest[name] = max(now, self.highest.get(name, now))

    def _follow(self, name: str, position: int) -> int:
        if name not in self._last:
            return position
        turn = self._resolutions[name]
        step = (position - self._last[name] + turn // 2) % turn - turn // 2
        return self._unwrapped[name] + step

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return a table: motor, lowest, present and highest position."""
        return [
            (name, str(self.lowest[name]), str(self._unwrapped[name]), str(self.highest[name]))
            for name in self.lowest
        ]

    def unmoved(self) -> list[str]:
        """Return the motors that were not moved."""
        return [name for name in self.lowest if self.lowest[name] == self.highest[name]]
