"""The emulated servos answer LeRobot 0.6.1's packets with the bytes of the recorded traffic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proctor.robots.emulation.dynamixel_servo import DynamixelServo
from proctor.robots.emulation.emulated_bus import EmulatedBus
from proctor.robots.emulation.feetech_servo import FeetechServo
from proctor.robots.emulation.servo import MemoryField, Servo

_TRAFFIC = json.loads(
    (Path(__file__).parent / "data/robots/bus_traffic.json").read_text(encoding="utf-8")
)
_STATUS_LEVEL = {"feetech": (8, 1), "dynamixel": (68, 2)}
"""The recording bus answered every write though this register was 0; real motors would not."""
_STUFFING = "dynamixel/stuffing_a"
"""Its gripper stands at -131073, whose bytes need stuffing, and gets such a goal. The recording bus
ignored that position mode has limits, so the replay sets extended position mode."""
_REFUSED_BY_MOTORS = {"dynamixel/torque_a": "configure_motors()"}
"""EEPROM writes while torque is on: the recording bus took them; Dynamixels refuse them."""
_MOVED_BETWEEN_READS = "feetech/ranges_a"
_BIG_ENDIAN = "feetech/scs0009_sync_read_a"
"""A motor of protocol 1, which is not emulated."""


def _has_no_fault(case: dict[str, Any]) -> bool:
    return bool(case.get("servos")) and "fault" not in case["name"]


_CASES = [
    name
    for name, case in _TRAFFIC.items()
    if _has_no_fault(case) and name not in (_MOVED_BETWEEN_READS, _BIG_ENDIAN)
]


def _servo(case: dict[str, Any], described: dict[str, Any]) -> Servo:
    registers = {int(key): value for key, value in described["nonzero_registers"].items()}
    address, level = _STATUS_LEVEL[case["protocol"]]
    registers[address] = level
    ticks = described["encoder"]
    if case["name"] == _STUFFING:
        registers[11] = 4
        ticks = -131073 if described["id"] == 6 else ticks
    kind = FeetechServo if case["protocol"] == "feetech" else DynamixelServo
    return kind(described["id"], ticks=ticks, registers=registers)


def _set_measurements(servos: list[Servo]) -> None:
    """Put the recording's measurements into the motors of the cases named reads."""
    for k, servo in enumerate(servos):
        negative = k % 2
        if isinstance(servo, FeetechServo):
            servo.put(MemoryField(58, 2), 11 * k | negative << 15)
            servo.put(MemoryField(60, 2), 100 + k | negative << 10)
            servo.put(MemoryField(69, 2), 0x8000 | k)
            servo.put(servo.temperature, 30 + k)
        else:
            servo.put(MemoryField(126, 2), 7 * k * (-1) ** k)
            servo.put(MemoryField(128, 4), 100 * k * (-1) ** k)
            servo.put(servo.temperature, 40 + k)
            servo.put(servo.voltage, 120 + k)


def _exchanges(case: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    """Return each packet of the host with the bytes that answered it."""
    exchanges: list[tuple[bytes, bytes]] = []
    for call in case["calls"]:
        if call["call"] == _REFUSED_BY_MOTORS.get(case["name"]):
            continue
        for direction, data in call["packets"]:
            if direction == "tx":
                exchanges.append((bytes.fromhex(data), b""))
            else:
                sent, answer = exchanges[-1]
                exchanges[-1] = (sent, answer + bytes.fromhex(data))
    return exchanges


@pytest.mark.parametrize("name", _CASES)
def test_servos_answer_with_the_recorded_bytes(name: str) -> None:
    case = _TRAFFIC[name]
    bus = EmulatedBus([_servo(case, described) for described in case["servos"]])
    if name.endswith("reads_a"):
        _set_measurements(bus.servos)
    rates = {servo.baud for servo in bus.servos}
    assert len(rates) == 1
    silent_first = name == "dynamixel/setup_motor_a"  # a ping at 9600 before the motor's rate
    exchanges = _exchanges(case)
    if silent_first:
        assert bus.receive(exchanges[0][0], 9600) == b""
        exchanges = exchanges[1:]

    answers = [bus.receive(sent, None) for sent, _ in exchanges]

    assert answers == [expected for _, expected in exchanges]


def test_the_traffic_has_cases_of_both_protocols() -> None:
    assert sum(name.startswith("feetech") for name in _CASES) >= 12
    assert sum(name.startswith("dynamixel") for name in _CASES) >= 7
