"""Arms against the recorded traffic of LeRobot 0.6.1's robots and teleoperators.

Positions and targets: the same bytes. Connect, calibrate and disconnect: LeRobot's writes in its
order, and motors in the same state, except for these differences.

* Handshake: one read per motor has model and firmware, where LeRobot needs four requests.
* Torque off begins with one packet to all motors: it reaches a motor that cannot answer.
* Before torque goes on, Goal_Position is set to the present position: a motor that was moved by
  hand does not jump back to its last goal. LeKiwi's wheels get the goal 0.
* A leader's EEPROM is locked after its configuration; LeRobot leaves it unlocked.
* Calibration resets no register: positions are converted by calculation, and the registers are
  written once, when the new values are complete. LeRobot resets, writes offsets, then writes all.
* Calibration is read back after it was written, and the EEPROM is unlocked before and locked
  after. LeRobot writes the file's values while the EEPROM is locked: a power cycle loses them.
* max_relative_target: whole numbers and names of some motors are accepted, where LeRobot raises.
  A negative limit is refused; LeRobot turns the motion around.
* LeKiwi: max_relative_target works, and an action without the base's keys moves the arm only.
  LeRobot 0.6.1 raises KeyError for both.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.robots.arm_bench import ScriptedOperator, move_to, plug_in

from proctor.errors import DeviceNotConnected, UsageError
from proctor.plugins import find_robot, find_teleoperator
from proctor.robots.action_limits import ActionLimiter, LimitSettings, per_channel
from proctor.robots.arms.lekiwi import WHEELS, base_motion, wheel_speeds
from proctor.robots.base import Device
from proctor.robots.emulation.dynamixel_servo import DynamixelServo
from proctor.robots.emulation.emulated_bus import EmulatedBus
from proctor.robots.emulation.feetech_servo import FeetechServo
from proctor.robots.emulation.servo import Servo

_DATA = Path(__file__).parent / "data/robots"
_TRAFFIC: dict[str, Any] = json.loads((_DATA / "robot_traffic.json").read_text())
_RULES: dict[str, Any] = json.loads((_DATA / "action_rules.json").read_text())
_STATUS_LEVEL = {"feetech": (8, 1), "dynamixel": (68, 2)}
"""The recording bus answered every write though this register was 0; real motors would not."""
_GOALS = {"feetech": range(42, 44), "dynamixel": range(116, 120)}
_WHEEL_GOALS, _LOCK = range(46, 48), range(55, 56)
_ACTION = {
    "shoulder_pan.pos": 10.0,
    "shoulder_lift.pos": -20.5,
    "elbow_flex.pos": 0.0,
    "wrist_flex.pos": 5.25,
    "wrist_roll.pos": 90.0,
    "gripper.pos": 75.0,
}


def _bus(case: dict[str, Any]) -> EmulatedBus:
    address, level = _STATUS_LEVEL[case["protocol"]]
    kind = FeetechServo if case["protocol"] == "feetech" else DynamixelServo
    servos: list[Servo] = []
    for described in case["servos"]:
        registers = {int(key): value for key, value in described["nonzero_registers"].items()}
        registers[address] = level
        servos.append(kind(described["id"], ticks=described["encoder"], registers=registers))
    return EmulatedBus(servos)


def _device(name: str, bus: EmulatedBus, folder: Path) -> Any:
    case = _TRAFFIC[name]
    fields = dict(case.get("config") or {})
    kind = fields.pop("type", name.partition("/")[0])
    fields |= {"id": "arm", "port": plug_in(bus), "calibration_dir": folder}
    if case.get("calibration"):
        (folder / "arm.json").write_text(json.dumps(case["calibration"]))
    if kind.endswith("leader"):
        plugin: Any = find_teleoperator(kind)
    else:
        plugin = find_robot(kind)
        fields["start_speed"] = None
    if kind == "lekiwi":
        fields["cameras"] = {}
    return plugin.make(plugin.config(**fields))


def _sent(call: dict[str, Any]) -> list[str]:
    return [data for direction, data in call["packets"] if direction == "tx"]


def _call(name: str, text: str) -> dict[str, Any]:
    return next(call for call in _TRAFFIC[name]["calls"] if call["call"].startswith(text))


def _log(bus: EmulatedBus) -> list[str]:
    sent = [packet.data.hex() for packet in bus.log if packet.direction == "tx"]
    bus.log.clear()
    return sent


def _writes(packets: list[str], protocol: str) -> list[str]:
    """Return the packets that write one motor."""
    at = 4 if protocol == "feetech" else 7
    return [packet for packet in packets if bytes.fromhex(packet)[at] == 3]


def _is_within(part: list[str], whole: list[str]) -> bool:
    """Return whether ``part`` is in ``whole`` in the same order."""
    rest = iter(whole)
    return all(packet in rest for packet in part)


def _memory(bus: EmulatedBus, without: list[range]) -> list[bytes]:
    """Return the registers of all motors, without measurements and the given ones."""
    hidden = {n for numbers in without for n in numbers}
    measured = range(56, 71) if isinstance(bus.servos[0], FeetechServo) else range(120, 147)
    return [
        bytes(b for n, b in enumerate(servo.memory) if n not in hidden and n not in measured)
        for servo in bus.servos
    ]


def _replay(name: str, text: str) -> EmulatedBus:
    """Return a bus of the same motors after LeRobot's packets up to the end of a call."""
    bus = _bus(_TRAFFIC[name])
    for call in _TRAFFIC[name]["calls"]:
        for packet in _sent(call):
            bus.receive(bytes.fromhex(packet), None)
        if call["call"].startswith(text):
            return bus
    raise AssertionError(text)


_WITH_CONNECT = [name for name in _TRAFFIC if "calibrate" not in name and "file_to" not in name]


@pytest.mark.parametrize("name", _WITH_CONNECT)
def test_connect_writes_what_lerobot_writes(name: str, tmp_path: Path) -> None:
    protocol = _TRAFFIC[name]["protocol"]
    bus = _bus(_TRAFFIC[name])
    _device(name, bus, tmp_path).connect()
    golden, ours = _sent(_call(name, "connect()")), _log(bus)
    assert _is_within(_writes(golden, protocol), _writes(ours, protocol))
    without = [_GOALS[protocol]]
    if name.startswith("so101_leader"):
        without.append(_LOCK)
    if name.startswith("lekiwi"):
        without.append(_WHEEL_GOALS)
    assert _memory(bus, without) == _memory(_replay(name, "connect()"), without)


@pytest.mark.parametrize("name", _WITH_CONNECT)
def test_positions_are_read_with_lerobots_bytes_and_values(name: str, tmp_path: Path) -> None:
    bus = _bus(_TRAFFIC[name])
    device = _device(name, bus, tmp_path)
    device.connect()
    leader = "leader" in name
    if name.startswith("lekiwi"):
        for servo, velocity in zip(bus.servos[6:], (100, 50 | 1 << 15, 0), strict=True):
            servo.memory[58:60] = velocity.to_bytes(2, "little")
    _log(bus)
    found = device.get_action() if leader else device.get_observation()
    golden = _call(name, "get_action" if leader else "get_observation")
    assert _log(bus) == _sent(golden)
    assert found == pytest.approx(golden["result"], abs=1e-12)
    assert list(found) == list(golden["result"])


_WITH_TARGETS = [
    (name, call["call"])
    for name in _TRAFFIC
    for call in _TRAFFIC[name]["calls"]
    if call["call"].startswith("send_action(") and "exception" not in call
]


@pytest.mark.parametrize(("name", "text"), _WITH_TARGETS)
def test_targets_are_sent_with_lerobots_bytes(name: str, text: str, tmp_path: Path) -> None:
    bus = _bus(_TRAFFIC[name])
    device = _device(name, bus, tmp_path)
    device.connect()
    _log(bus)
    golden = _call(name, text)
    if name.startswith("lekiwi"):
        base = dict(
            part.split("=") for part in text[len("send_action(arm goals, ") : -1].split(", ")
        )
        action = {f"arm_{key}": value for key, value in _ACTION.items()}
        action |= {key: float(value) for key, value in base.items()}
    else:
        action = ast.literal_eval(text[len("send_action(") : -1])
    assert device.send_action(action) == pytest.approx(golden["result"], abs=1e-12)
    assert _log(bus) == _sent(golden)


@pytest.mark.parametrize(
    ("name", "action", "sent"),
    [
        ("so101_follower/max_relative_partial_a", {"gripper.pos": 5.0}, 49.96539792387543 - 6),
        ("so101_follower/max_relative_int_a", {"gripper.pos": 5.0}, 49.96539792387543 - 5),
    ],
)
def test_limits_that_lerobot_cannot_apply_are_applied(
    name: str, action: dict[str, float], sent: float, tmp_path: Path
) -> None:
    device = _device(name, _bus(_TRAFFIC[name]), tmp_path)
    device.connect()
    assert device.send_action(action) == pytest.approx({"gripper.pos": sent})


@pytest.mark.parametrize("name", _WITH_CONNECT)
def test_disconnect_switches_off_as_lerobot_does(name: str, tmp_path: Path) -> None:
    protocol = _TRAFFIC[name]["protocol"]
    bus = _bus(_TRAFFIC[name])
    device = _device(name, bus, tmp_path)
    device.connect()
    _log(bus)
    device.disconnect()
    golden, ours = _sent(_call(name, "disconnect()")), _log(bus)
    assert _writes(ours, protocol) == _writes(golden, protocol)
    assert not device.is_connected
    with pytest.raises(DeviceNotConnected):
        device.get_action() if "leader" in name else device.get_observation()


def test_a_leader_is_moved_and_held_with_lerobots_bytes(tmp_path: Path) -> None:
    name = "so101_leader/a"
    bus = _bus(_TRAFFIC[name])
    leader = _device(name, bus, tmp_path)
    leader.connect()
    _log(bus)
    leader.send_feedback(_ACTION)
    assert _log(bus) == _sent(_call(name, "send_feedback"))
    leader.set_torque(on=True)
    assert _writes(_log(bus), "feetech") == _sent(_call(name, "enable_torque()"))


def test_the_file_is_written_to_the_motors_and_survives_a_power_cycle(tmp_path: Path) -> None:
    name = "so101_follower/file_to_motors_a"
    bus = _bus(_TRAFFIC[name])
    device = _device(name, bus, tmp_path)
    device.connect(ScriptedOperator([""]))
    golden = _sent(_call(name, "connect()"))
    assert _memory(bus, [_GOALS["feetech"]]) == _memory(
        _replay(name, "connect()"), [_GOALS["feetech"]]
    )
    assert set(_writes(golden, "feetech")) <= set(_log(bus))
    device.disconnect()
    for servo in bus.servos:
        servo.power_cycle()
    assert device.bus.calibration
    device.connect()
    assert device.is_calibrated


@pytest.mark.parametrize("name", [name for name in _TRAFFIC if "calibrate" in name])
def test_calibration_gives_lerobots_file_and_registers(name: str, tmp_path: Path) -> None:
    case = _TRAFFIC[name]
    bus = _bus(case)

    def move(amounts: list[int]) -> None:
        for servo, amount in zip(bus.servos, amounts, strict=True):
            move_to(servo, servo.motion.ticks + amount)

    device: Device = _device(name, bus, tmp_path)
    person = ScriptedOperator([""], [lambda a=a: move(a) for a in case["moves"]])
    device.calibrate(person)
    assert (tmp_path / "arm.json").read_text() == case["calibration_file"]
    without = [_GOALS[case["protocol"]], *([_LOCK] if case["protocol"] == "feetech" else [])]
    assert _memory(bus, without) == _memory(_replay(name, "calibrate()"), without)


def test_relative_limits_are_lerobots() -> None:
    for row in _RULES["max_relative_target"]:
        goals = {f"{key}.pos": float(pair[0]) for key, pair in row["goal_present"].items()}
        pose = {f"{key}.pos": float(pair[1]) for key, pair in row["goal_present"].items()}
        if row["cap"] is None or "exception" in row:
            continue
        if not isinstance(row["cap"], dict) and row["cap"] < 0:
            with pytest.raises(UsageError):
                per_channel("--x", row["cap"], list(goals))
            continue
        limiter = ActionLimiter(LimitSettings(step=per_channel("--x", row["cap"], list(goals))))
        sent = limiter.apply(goals, lambda pose=pose: pose, now=0.0)
        assert sent == pytest.approx({f"{key}.pos": value for key, value in row["out"].items()})


def test_wheels_turn_as_lerobots() -> None:
    for row in _RULES["lekiwi_body_to_wheel"]:
        assert wheel_speeds(row["x"], row["y"], row["theta"]) == row["raw"]
    for row in _RULES["lekiwi_wheel_to_body"]:
        found = base_motion(dict(zip(WHEELS, row["raw"], strict=True)))
        assert found == pytest.approx(row["body"], abs=1e-12)
