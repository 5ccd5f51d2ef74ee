"""The emulated bus behind a pseudo terminal, driven with pyserial from this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import serial

from proctor.errors import DeviceNotConnected
from proctor.plugins import find_robot
from proctor.robots.base import Robot
from proctor.robots.emulation.instruction_packets import feetech_checksum
from tests.pty_arm import PtyArm

PING_1, PONG_1 = bytes.fromhex("ffff010201fb"), bytes.fromhex("ffff010200fc")


@pytest.fixture
def arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PtyArm]:
    """An arm whose process may be late: the driver waits for every reply."""
    monkeypatch.setattr("proctor.robots.buses.serial_line._TIMEOUT_STEPS_S", (60.0,))
    with PtyArm(tmp_path) as arm:
        yield arm


def _follower(arm: PtyArm, folder: Path) -> Robot:
    plugin = find_robot("so101_follower")
    config = plugin.config(  # type: ignore[call-arg]
        type="so101_follower", port=arm.port, id="arm", calibration_dir=folder
    )
    return plugin.make(config)


def _ping_for_ever(port: serial.Serial) -> None:
    while True:
        port.write(PING_1)
        port.read(6)


def test_motors_answer_only_at_their_baud_rate(arm: PtyArm) -> None:
    with serial.Serial(arm.port, 115_200, timeout=0.2) as port:
        port.write(PING_1)
        assert port.read(6) == b""
    with serial.Serial(arm.port, 1_000_000, timeout=60) as port:
        port.write(PING_1)
        assert port.read(6) == PONG_1


def test_a_follower_connects_with_the_motors_calibration_and_torque_shows(
    arm: PtyArm, tmp_path: Path
) -> None:
    robot = _follower(arm, tmp_path)
    robot.connect()
    arm.wait_for(lambda state: all(state["torque"].values()))
    assert robot.get_observation()["shoulder_lift.pos"] == pytest.approx(-55.0, abs=0.5)
    robot.disconnect()
    arm.wait_for(lambda state: not any(state["torque"].values()))


def test_a_pulled_cable_is_reported_and_can_be_put_back(arm: PtyArm, tmp_path: Path) -> None:
    with serial.Serial(arm.port, 1_000_000, timeout=60) as port:
        arm.order(unplug=True)
        with pytest.raises(OSError):
            _ping_for_ever(port)
    with pytest.raises(DeviceNotConnected):
        _follower(arm, tmp_path).connect()
    arm.order(plug_in=True)
    arm.wait_for(lambda _: Path(arm.port).exists())
    robot = _follower(arm, tmp_path)
    robot.connect()
    robot.disconnect()


def test_faults_and_burnt_motors_are_ordered_through_standard_input(arm: PtyArm) -> None:
    arm.order(burn=2)
    arm.wait_for(lambda state: state["burnt"] == ["shoulder_lift"])
    arm.order(fault="error", motor=1, error=32)
    with serial.Serial(arm.port, 1_000_000, timeout=60) as port:
        answer = b""
        while answer != bytes.fromhex("ffff010220dc"):  # until the order was read
            port.write(PING_1)
            answer = port.read(6)


def test_sigterm_ends_it_cleanly_and_removes_the_link(tmp_path: Path) -> None:
    arm = PtyArm(tmp_path)
    assert Path(arm.port).is_symlink()
    assert arm.stop() == 0
    assert not Path(arm.port).is_symlink()


def test_a_person_moves_the_limp_arm(arm: PtyArm) -> None:
    with serial.Serial(arm.port, 1_000_000, timeout=60) as port:
        arm.order(hand={"elbow_flex": 1.0})
        arm.wait_for(lambda state: _position(port, 3) == 2048 + 652)
        arm.order(hand=None, sweep=True)
        arm.wait_for(lambda state: _position(port, 3) < 2048)


def _position(port: serial.Serial, motor_id: int) -> int:
    request = bytes((0xFF, 0xFF, motor_id, 4, 2, 56, 2))
    port.write(request + bytes((feetech_checksum(request),)))
    return int.from_bytes(port.read(8)[5:7], "little")
