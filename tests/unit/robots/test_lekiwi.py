"""LeKiwi: an arm and three wheels on one emulated bus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proctor.errors import BusError
from proctor.robots.arms.lekiwi import WHEELS, Lekiwi, LekiwiConfig
from proctor.robots.base import Unit
from proctor.robots.emulation.emulated_bus import EmulatedBus
from proctor.robots.emulation.feetech_servo import FeetechServo
from tests.unit.robots.arm_bench import ScriptedOperator, move_to, plug_in, torques


def robot_on(folder: Path, **fields: Any) -> tuple[Lekiwi, EmulatedBus]:
    bus = EmulatedBus([FeetechServo(number) for number in range(1, 10)])
    settings = {"start_speed": None, "cameras": {}, **fields}
    robot = Lekiwi(LekiwiConfig(port=plug_in(bus), id="k", calibration_dir=folder, **settings))
    entries = {
        name: {
            "id": motor.id,
            "drive_mode": 0,
            "homing_offset": 0,
            "range_min": 0,
            "range_max": 4095,
        }
        for name, motor in robot.bus.motors.items()
    }
    (folder / "k.json").write_text(json.dumps(entries))
    return robot, bus


def goal_speeds(bus: EmulatedBus) -> list[int]:
    return [servo.get(servo.goal_velocity) for servo in bus.servos[6:]]


def test_channels_are_the_arms_positions_and_the_bases_motion(tmp_path: Path) -> None:
    robot, _ = robot_on(tmp_path)
    names = list(robot.action_features)
    assert names[0] == "arm_shoulder_pan.pos"
    assert names[6:] == ["x.vel", "y.vel", "theta.vel"]
    assert robot.action_features["theta.vel"] is Unit.DEGREES_PER_SECOND


def test_wheels_stand_still_when_torque_goes_on_and_after_a_stop(tmp_path: Path) -> None:
    robot, bus = robot_on(tmp_path)
    for servo in bus.servos[6:]:
        servo.put(servo.goal_velocity, 500)
    robot.connect()
    assert goal_speeds(bus) == [0, 0, 0]
    robot.send_action({"x.vel": 0.0, "y.vel": 0.0, "theta.vel": 30.0})
    assert goal_speeds(bus) == [853, 853, 853]
    robot.stop()
    assert goal_speeds(bus) == [0, 0, 0]
    assert not any(torques(bus))


def test_an_action_of_the_arm_alone_leaves_the_base(tmp_path: Path) -> None:
    robot, bus = robot_on(tmp_path)
    robot.connect()
    robot.send_action({"theta.vel": 30.0})
    assert robot.send_action({"arm_gripper.pos": 10.0}) == {"arm_gripper.pos": 10.0}
    assert goal_speeds(bus) == [853, 853, 853]


def test_a_relative_limit_holds_for_the_arm_only(tmp_path: Path) -> None:
    robot, _ = robot_on(tmp_path, max_relative_target=5.0)
    robot.connect()
    sent = robot.send_action({"arm_wrist_flex.pos": 50.0, "x.vel": 0.1})
    assert sent["arm_wrist_flex.pos"] == pytest.approx(5.0, abs=0.1)
    assert sent["x.vel"] == 0.1


def test_wheels_stop_at_disconnect_even_if_torque_stays_on(tmp_path: Path) -> None:
    robot, bus = robot_on(tmp_path, disable_torque_on_disconnect=False)
    robot.connect()
    robot.send_action({"x.vel": 0.1})
    robot.disconnect()
    assert goal_speeds(bus) == [0, 0, 0]
    assert all(torques(bus))


def test_a_burnt_wheel_does_not_keep_the_arm_on(tmp_path: Path) -> None:
    robot, bus = robot_on(tmp_path)
    robot.connect()
    bus.burn(8)
    with pytest.raises(BusError, match="base_back_wheel"):
        robot.get_observation()
    with pytest.raises(BusError):
        robot.disconnect()
    assert torques(bus) == [False] * 7 + [True, False]


def test_the_torque_guard_switches_wheels_off_too() -> None:
    [target] = Lekiwi(LekiwiConfig(port="/dev/ttyACM0", cameras={})).guard_targets()
    assert set(target.motor_ids) == set(range(1, 10))


def test_wheels_get_no_offset_in_a_calibration(tmp_path: Path) -> None:
    robot, bus = robot_on(tmp_path)

    def move(amount: int) -> None:
        for servo in bus.servos:
            move_to(servo, servo.motion.ticks + amount)

    person = ScriptedOperator(["c", ""], [lambda: move(300), lambda: move(-500)])
    robot.calibrate(person)
    found = json.loads((tmp_path / "k.json").read_text())
    assert found["arm_elbow_flex"]["range_max"] - found["arm_elbow_flex"]["range_min"] == 500
    for wheel in WHEELS:
        assert (found[wheel]["homing_offset"], found[wheel]["range_max"]) == (0, 4095)
