"""Traffic, units and calibration files of motor buses against LeRobot 0.6.1.

``bus_traffic.json`` has 49 cases: calls of LeRobot's buses on emulated motors with every packet.
Each call is made on our bus. Packets, results and kinds of error must be equal, except for the
calls in ``DIFFERENCES``, where LeRobot is wrong or ours needs fewer packets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.replayed_bus import ReplayedPort, opener_of

from proctor.errors import DeviceNotConnected, ProctorError, UsageError
from proctor.robots.base import Unit
from proctor.robots.buses.calibration import (
    MotorCalibration,
    RangeOfMotion,
    half_turn_offset,
    load_calibration,
    save_calibration,
)
from proctor.robots.buses.dynamixel_packets import DynamixelCodec
from proctor.robots.buses.motor_bus import MotorBus
from proctor.robots.buses.normalisation import PositionScale
from proctor.robots.buses.registers import (
    Motor,
    decode_sign_magnitude,
    decode_twos_complement,
    encode_sign_magnitude,
    encode_twos_complement,
)

DATA = Path(__file__).parent / "data" / "robots"
CASES: dict[str, Any] = {
    name.removesuffix("_a"): case
    for name, case in json.loads((DATA / "bus_traffic.json").read_text()).items()
}
UNITS = {
    "range_0_100": Unit.PERCENT,
    "range_m100_100": Unit.SIGNED_PERCENT,
    "degrees": Unit.DEGREES,
}
SYNC_READ = "sync_read('Present_Position', normalize=False)"


@dataclass(frozen=True)
class Difference:
    """How a call of ours differs from LeRobot's, and why."""

    reason: str
    asides: Sequence[str] = ()
    """Packets of ours that LeRobot does not send."""
    unsent: int | None = 0
    """Count of LeRobot's packets that ours leaves out; None for all."""
    left_out: str = "never"
    """Pattern of LeRobot's packets that ours leaves out, with their replies."""
    result: Any = "as recorded"
    """The result; an exception class if ours raises."""


def _identify(*ids: int) -> list[str]:
    return [f"read 0,5 of {one}" for one in ids]


def _writes(ids: Sequence[int], *addresses: int) -> list[str]:
    return [f"write {address}=00 to {one}" for one in ids for address in addresses]


IDENTIFY_ALL = _identify(*range(1, 7))
MODEL_READ = "ffff..04020302"
CALIBRATION_READS = [f"read {a},2 of {one}" for one in range(1, 7) for a in (9, 11, 31)]
CALIBRATION_SYNC_READS = ["sync read 20,4", "sync read 52,4", "sync read 48,4", "sync read 10,1"]


ONE_READ = "one read of address 0 gives firmware and model; LeRobot sends a ping and three reads"
ALL_OFF = "one packet to all motors first, so that a failing motor does not leave the others on"
FENCE = "a motor that missed its timeout must answer a read of its own size: no stale reply"
CLOSED = "a failed handshake closes the port"
TWICE = "a closed device is left alone"
PRESENT = "a motor with an alert is there, and is not called missing"
UNMEASURED = "the arm's calibration writes once, at its end: see test_half_turn_offsets_match"

DIFFERENCES: dict[tuple[str, str], Difference] = {
    ("feetech/connect", "connect()"): Difference(ONE_READ, IDENTIFY_ALL, None),
    ("feetech/connect", "disconnect()"): Difference(ALL_OFF, ["sync write 40,1"]),
    ("feetech/connect", "disconnect() again"): Difference(TWICE, result=None),
    ("feetech/connect_missing", "connect()"): Difference(
        ONE_READ,
        [
            *_identify(1, 2, 3, 4),
            "resynchronise 4",
            "resynchronise 4",
            *_identify(5, 6),
        ],
        None,
    ),
    ("feetech/connect_missing", "is_connected"): Difference(CLOSED, result=False),
    ("feetech/connect_firmware_differs", "connect()"): Difference(ONE_READ, IDENTIFY_ALL, None),
    ("feetech/connect_wrong_model", "connect()"): Difference(ONE_READ, IDENTIFY_ALL, None),
    ("feetech/reads", "ping('elbow_flex')"): Difference(ONE_READ, ["read 0,5 of 3"], None),
    ("feetech/reads", "ping(9)"): Difference(ONE_READ, ["read 0,5 of 9"], None),
    ("feetech/reads", "ping(9, raise_on_error=True)"): Difference(
        "ping returns None and has no flag to raise", ["resynchronise 9"], None, result=None
    ),
    ("feetech/torque", "disconnect()"): Difference(ALL_OFF, ["sync write 40,1"]),
    ("feetech/calibration", "write_calibration(cal)"): Difference(
        "old values are read, torque goes off, EEPROM is unlocked, read back and locked",
        [
            *CALIBRATION_READS,
            "sync write 40,1",
            *_writes(range(1, 7), 40, 55),
            *[f"write 55=01 to {one}" for one in range(1, 7)],
            *CALIBRATION_READS,
        ],
    ),
    ("feetech/calibration", "set_half_turn_homings()"): Difference(UNMEASURED, (), None),
    ("feetech/calibration", "reset_calibration('gripper')"): Difference(UNMEASURED, (), None),
    ("feetech/calibration", "set_half_turn_homings(['gripper'])"): Difference(UNMEASURED, (), None),
    ("feetech/fault_drop", f"again without fault: {SYNC_READ}"): Difference(
        FENCE, ["resynchronise 3"]
    ),
    ("feetech/fault_drop_retry", f"{SYNC_READ[:-1]}, num_retry=2)"): Difference(
        FENCE, ["resynchronise 3"]
    ),
    ("feetech/fault_drop_retry_out", f"{SYNC_READ[:-1]}, num_retry=2)"): Difference(
        FENCE, ["resynchronise 3"] * 2
    ),
    ("feetech/fault_drop_retry_out", f"again without fault: {SYNC_READ}"): Difference(
        FENCE, ["resynchronise 3"]
    ),
    ("feetech/fault_corrupt", f"again without fault: {SYNC_READ}"): Difference(
        FENCE, ["resynchronise 3"]
    ),
    ("feetech/fault_corrupt_retry", f"{SYNC_READ[:-1]}, num_retry=1)"): Difference(
        FENCE, ["resynchronise 3"]
    ),
    ("feetech/fault_overload_sync_read", SYNC_READ): Difference(
        "an overload is noticed in its cycle; LeRobot ignores the error byte", result=ProctorError
    ),
    ("feetech/fault_voltage_ping", "ping(name)"): Difference(
        PRESENT, ["read 0,5 of 3"], None, result=777
    ),
    ("feetech/fault_drop_write", f"again without fault: {SYNC_READ}"): Difference(
        FENCE, ["resynchronise 3"]
    ),
    ("feetech/fault_drop_write_retry", "write('Torque_Enable', name, 1, num_retry=1)"): Difference(
        FENCE, ["resynchronise 3"]
    ),
    ("feetech/fault_overload_disconnect", "disconnect()"): Difference(
        "every motor is told and an alert is no failure; LeRobot stops at the third motor",
        [
            "sync write 40,1",
            "write 55=00 to 3",
            *_writes((4, 5, 6), 40, 55),
        ],
        result=None,
    ),
    ("feetech/fault_overload_disconnect", "is_connected"): Difference(
        "the port is always closed", result=False
    ),
    ("feetech/fault_overload_disconnect", f"again without fault: {SYNC_READ}"): Difference(
        "the port is closed", (), None, result=DeviceNotConnected
    ),
    ("feetech/fault_handshake_overload", "connect()"): Difference(
        f"{ONE_READ}; {PRESENT}", IDENTIFY_ALL, None
    ),
    ("feetech/setup_motor", "setup_motor('gripper')"): Difference(
        f"{ONE_READ}; the new id is checked",
        ["read 0,5 of 1", "resynchronise 6", "read 0,5 of 6"],
        left_out=MODEL_READ,
    ),
    ("feetech/setup_motor_wrong_model", "setup_motor('gripper')"): Difference(
        ONE_READ, ["read 0,5 of 1"], left_out=MODEL_READ
    ),
    ("feetech/setup_motor_two_on_bus", "setup_motor('gripper')"): Difference(
        "two motors are refused; LeRobot renames the lower id",
        ["read 0,5 of 1", "read 0,5 of 2"],
        4,
        MODEL_READ,
        ProctorError,
    ),
    ("feetech/broadcast_ping", "broadcast_ping()"): Difference(ONE_READ, IDENTIFY_ALL, 6),
    ("feetech/scs0009_sync_read", "connect()"): Difference(ONE_READ, ["read 0,5 of 1"], None),
    ("feetech/scs0009_sync_read", "sync_read('Present_Position')"): Difference(
        "SCS motors are read one by one; then only the calibration is missing",
        ["read 56,2 of 1"],
        result=ProctorError,
    ),
    ("dynamixel/connect", "disconnect()"): Difference(ALL_OFF, ["sync write 64,1"]),
    ("dynamixel/connect_missing", "connect()"): Difference(FENCE, ["resynchronise 6"] * 2),
    ("dynamixel/stuffing", "write('Goal_Position','gripper',-131073, normalize=False)"): Difference(
        "LeRobot does not stuff what it sends", ["write 116=fffffdff to 6"], None
    ),
    ("dynamixel/stuffing", "sync_write('Goal_Position', {'gripper': -131073}, normalize=False)"): (
        Difference("LeRobot does not stuff what it sends", ["sync write 116,4"], None)
    ),
    ("dynamixel/torque", "disconnect()"): Difference(ALL_OFF, ["sync write 64,1"]),
    ("dynamixel/calibration", "write_calibration(cal)"): Difference(
        "old values are read, torque goes off, values are read back",
        [
            *CALIBRATION_SYNC_READS,
            "sync write 64,1",
            *_writes(range(1, 7), 64),
            *CALIBRATION_SYNC_READS,
        ],
    ),
    ("dynamixel/calibration", "set_half_turn_homings()"): Difference(UNMEASURED, (), None),
    ("dynamixel/fault_drop", "again without fault: sync_read"): Difference(
        FENCE, ["resynchronise 3"]
    ),
    ("dynamixel/fault_drop_retry", f"{SYNC_READ[:-1]}, num_retry=2)"): Difference(
        FENCE, ["resynchronise 3"]
    ),
    ("dynamixel/fault_corrupt", "again without fault: sync_read"): Difference(
        FENCE, ["resynchronise 3"]
    ),
    ("dynamixel/fault_alert_read", "read('Present_Position', name)"): Difference(
        "the motor is asked for the cause of its alert", ["read 70,1 of 3"]
    ),
    ("dynamixel/fault_alert_sync_read", SYNC_READ): Difference(
        "an alert is noticed in its cycle, and its cause is asked for",
        ["read 70,1 of 3"],
        result=ProctorError,
    ),
    ("dynamixel/setup_motor", "setup_motor('gripper')"): Difference(
        "the arm's baud rate is searched first; the new id is checked",
        ["resynchronise 6", "ping 6"],
    ),
}


class LeRobotNames:
    """Our bus under the names of LeRobot's methods, for the recorded calls."""

    def __init__(self, bus: MotorBus, port: ReplayedPort) -> None:
        self.bus, self.port = bus, port
        names = ("connect", "disconnect", "enable_torque", "disable_torque", "torque_disabled")
        for name in (*names, "configure_motors", "write_calibration", "broadcast_ping"):
            setattr(self, name, self._with_lists(getattr(bus, name)))

    def _with_lists(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*motors: Any, **options: Any) -> Any:
            return method(*([one] if isinstance(one, str) else one for one in motors), **options)

        return call

    def _names(self, motors: Any) -> list[str] | None:
        by_id = {motor.id: name for name, motor in self.bus.motors.items()}
        listed = [motors] if isinstance(motors, str) else motors
        return listed and [by_id.get(one, one) for one in listed]

    def sync_read(
        self, register: str, motors: Any = None, *, num_retry: int = 0, **more: Any
    ) -> Any:
        return self.bus.sync_read(register, self._names(motors), retries=num_retry, **more)

    def read(self, *words: Any, num_retry: int = 0, **more: Any) -> Any:
        return self.bus.read(*words, retries=num_retry, **more)

    def write(self, *words: Any, num_retry: int = 0, **more: Any) -> Any:
        self.bus.write(*words, retries=num_retry, **more)

    def sync_write(self, *words: Any, **more: Any) -> Any:
        self.bus.sync_write(*words, **more)

    def ping(self, motor: str | int, *, raise_on_error: bool = False) -> Any:
        return self.bus.ping(motor)

    def setup_motor(self, motor: str) -> None:
        self.bus.set_up_motor(motor)

    def get_baudrate(self) -> int:
        return self.port.baudrate

    def read_calibration(self) -> Any:
        return {name: asdict(entry) for name, entry in self.bus.read_calibration().items()}

    def record_ranges_of_motion(self, motors: list[str]) -> Any:
        """Read as often as recorded; return lowest and highest positions as LeRobot does."""
        sweep = RangeOfMotion(dict.fromkeys(motors, 4096))
        while self.port.unsent:
            positions = self.bus.sync_read("Present_Position", motors, normalize=False)
            sweep.add({name: int(ticks) for name, ticks in positions.items()})
        if sweep.unmoved():
            raise UsageError("unmoved", code="robot.test")
        return [sweep.lowest, sweep.highest]

    def make(self, text: str, calibration: Any) -> Any:
        """Make a recorded call, such as "ping(9)"."""
        text = text.removeprefix("again without fault: ").removesuffix(" again")
        if text == "sync_read":
            text = SYNC_READ
        text = text.removesuffix(" while nothing moves")
        if text in ("is_connected", "is_calibrated"):
            return getattr(self.bus, text)
        if text.startswith("with "):
            with self.torque_disabled("shoulder_pan"):  # type: ignore[attr-defined]
                return self.write("P_Coefficient", "shoulder_pan", 20)
        scope = {"self": self, "cal": calibration, "name": "elbow_flex"}
        return eval(f"self.{text}", scope)


NOT_CALLS = ("servo state", "ids now", "calibration (in memory)")
"""Entries of the recording that look at the emulated motors or at LeRobot's own state."""


def _prepare(case: dict[str, Any], protocol: str) -> tuple[MotorBus, ReplayedPort, Any]:
    motors = {
        name: Motor(entry["id"], entry["model"], UNITS[entry["norm_mode"]])
        for name, entry in case["motors"].items()
    }
    identities = {
        servo["id"]: bytes(servo["nonzero_registers"].get(str(address), 0) for address in range(5))
        for servo in case["servos"]
    }
    port = ReplayedPort(protocol, identities)
    calibration = {
        name: MotorCalibration(**entry) for name, entry in (case.get("calibration") or {}).items()
    }
    return MotorBus("replayed", motors, calibration, opener=opener_of(port)), port, calibration


def _traffic_cases() -> list[str]:
    return [name for name, case in CASES.items() if case.get("motors") and case.get("calls")]


@pytest.mark.parametrize("name", _traffic_cases())
def test_the_traffic_is_lerobots_except_for_the_listed_differences(name: str) -> None:
    case, protocol = CASES[name], name.partition("/")[0]
    bus, port, calibration = _prepare(case, protocol)
    if not case["calls"][0]["call"].startswith("connect"):
        bus.connect(handshake=False)
    made: set[str] = set()
    for entry in case["calls"]:
        text = entry["call"] + " again" * (entry["call"] in made and "connect()" in entry["call"])
        made.add(entry["call"])
        if text in NOT_CALLS:
            continue
        _compare(name, text, entry, LeRobotNames(bus, port), calibration)


def _lines(packets: Sequence[Sequence[str]]) -> list[str]:
    return [" ".join(packet) for packet in packets]


def _without(packets: Sequence[str], pattern: str) -> list[str]:
    """Leave out the sent packets that match ``pattern``, and their replies."""
    kept, keep = [], True
    for packet in packets:
        if packet.startswith("tx"):
            keep = re.match(f"tx {pattern}", packet) is None
        kept += [packet] * keep
    return kept


def _compare(name: str, text: str, entry: Any, names: LeRobotNames, calibration: Any) -> None:
    difference = DIFFERENCES.get((name, text), Difference("equal"))
    port = names.port
    port.load(_without(_lines(entry["packets"]), difference.left_out))
    port.errors = {3: 0x20} if "overload" in name and "again" not in text else {}
    sent = len(port.unsent)
    if difference.reason == UNMEASURED:
        names.bus.calibration = {}
        return
    expected = entry.get("result")
    if difference.result != "as recorded":
        expected = difference.result
    elif "exception" in entry:
        expected = ProctorError
    if isinstance(expected, type):
        with pytest.raises(expected):
            names.make(text, calibration)
    else:
        assert json.loads(json.dumps(names.make(text, calibration))) == expected
    assert port.asides == list(difference.asides), text
    unsent = sent if difference.unsent is None else difference.unsent
    assert len(port.unsent) == unsent, text


def test_every_listed_difference_belongs_to_a_recorded_call() -> None:
    calls = {(name, entry["call"]) for name in _traffic_cases() for entry in CASES[name]["calls"]}
    assert {(name, text.removesuffix(" again")) for name, text in DIFFERENCES} <= calls


def test_a_missing_port_is_named() -> None:
    bus = MotorBus("/dev/proctor-has-no-such-port", {"a": Motor(1, "sts3215", Unit.DEGREES)})
    with pytest.raises(DeviceNotConnected) as error:
        bus.connect()
    assert error.value.code == "robot.port-missing"
    assert "/dev/proctor-has-no-such-port" in str(error.value)
    assert not bus.is_connected


def test_motors_with_one_id_are_refused() -> None:
    motor = Motor(1, "sts3215", Unit.DEGREES)
    with pytest.raises(UsageError) as error:
        MotorBus("x", {"a": motor, "b": motor})
    assert error.value.code == "robot.duplicate-id"


def test_motors_of_two_protocols_are_refused() -> None:
    motors = {
        "a": Motor(1, "sts3215", Unit.DEGREES),
        "b": Motor(2, "scs0009", Unit.DEGREES),
    }
    with pytest.raises(UsageError) as error:
        MotorBus("x", motors)
    assert error.value.code == "robot.mixed-protocols"


def test_stuffed_packets_count_the_stuffed_bytes() -> None:
    packet = DynamixelCodec().write(6, 116, bytes.fromhex("fffffdff")).packet
    assert packet.hex().startswith("fffffd00060a00037400fffffdfdff")


PRESENT_POSITION = {"feetech/calibration": (56, 2), "dynamixel/calibration": (132, 4)}


@pytest.mark.parametrize("name", list(PRESENT_POSITION))
def test_half_turn_offsets_match(name: str) -> None:
    entry = next(e for e in CASES[name]["calls"] if e["call"] == "set_half_turn_homings()")
    bus, port, _ = _prepare(CASES[name], name.partition("/")[0])
    bus.connect(handshake=False)
    lines = _lines(entry["packets"])
    request = bus.codec.sync_read(*PRESENT_POSITION[name], range(1, 7)).packet.hex()
    port.load(lines[lines.index(f"tx {request}") :][:7])
    positions = bus.sync_read("Present_Position", normalize=False)
    offsets = {
        motor: half_turn_offset(int(position), bus.motors[motor].model)
        for motor, position in positions.items()
    }
    assert offsets == entry["result"]


NORMALISATION = json.loads((DATA / "normalisation.json").read_text())


def test_all_normalised_values_match() -> None:
    rows = [dict(zip(NORMALISATION["columns"], row, strict=True)) for row in NORMALISATION["rows"]]
    assert len(rows) == 1818
    for row in rows:
        calibration = MotorCalibration(1, row["drive_mode"], 0, row["range_min"], row["range_max"])
        scale = PositionScale("m", Motor(1, row["model"], UNITS[row["mode"]]), calibration)
        if row["op"] == "normalize":
            assert scale.to_unit(row["raw"]) == row["value"], row
            assert scale.to_ticks(row["value"]) == row["back"], row
        else:
            assert scale.to_ticks(row["value"]) == row["raw"], row


@pytest.mark.parametrize("entry", NORMALISATION["sign_encodings"])
def test_sign_encodings_match(entry: dict[str, Any]) -> None:
    if entry["kind"].startswith("sign_magnitude"):
        size, encode, decode = entry["bit"], encode_sign_magnitude, decode_sign_magnitude
    else:
        size, encode, decode = entry["bytes"], encode_twos_complement, decode_twos_complement
    if "exception" in entry:
        with pytest.raises(UsageError):
            encode(entry["value"], size)
        return
    if "value" in entry:
        assert encode(entry["value"], size) == entry["encoded"]
    assert decode(entry["encoded"], size) == entry["decoded"]


@pytest.mark.parametrize("name", ["so101_follower", "koch_leader"])
def test_calibration_files_match_byte_for_byte(name: str, tmp_path: Path) -> None:
    path = DATA / f"calibration_{name}.json"
    save_calibration(tmp_path / "again.json", load_calibration(path))
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
