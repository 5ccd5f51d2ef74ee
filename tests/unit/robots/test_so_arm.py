"""SO-101 follower and leader on an emulated bus: connect, read, command, alerts, safe end."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proctor.errors import (
    BusError,
    DeviceNotConnected,
    ProctorWarning,
    RobotError,
    UsageError,
)
from proctor.robots.arms.so import SoFollower, SoFollowerConfig, SoLeader, SoLeaderConfig
from proctor.robots.base import Unit
from proctor.robots.emulation.emulated_bus import EmulatedBus
from proctor.robots.emulation.servo import OVERHEAT_ALERT, OVERLOAD_ALERT
from tests.refusals import refuses
from tests.unit.robots.arm_bench import (
    ScriptedOperator,
    move_to,
    plug_in,
    so_bus,
    torques,
)

NAMES = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
LOW, HIGH = 1047, 3047
FULL = {"id": 0, "drive_mode": 0, "homing_offset": 0, "range_min": LOW, "range_max": HIGH}


def write_calibration(folder: Path, bus: EmulatedBus, **changes: dict[str, int]) -> None:
    """Write a calibration file and give the motors the same values."""
    content: dict[str, Any] = {}
    for name, servo in zip(NAMES, bus.servos, strict=True):
        servo.store(servo.min_limit, LOW)
        servo.store(servo.max_limit, HIGH)
        content[name] = {**FULL, "id": servo.id, **changes.get(name, {})}
    (folder / "arm.json").write_text(json.dumps(content))


def follower(bus: EmulatedBus, folder: Path, **fields: Any) -> SoFollower:
    settings = {"start_speed": None, **fields}
    return SoFollower(
        SoFollowerConfig(port=plug_in(bus), id="arm", calibration_dir=folder, **settings)
    )


def connected(bus: EmulatedBus, folder: Path, **fields: Any) -> SoFollower:
    write_calibration(folder, bus)
    arm = follower(bus, folder, **fields)
    arm.connect()
    return arm


@contextmanager
def closing_at_the_end(arm: SoFollower) -> Iterator[None]:
    try:
        yield
    finally:
        arm.disconnect()


def test_features_are_known_before_connect(tmp_path: Path) -> None:
    arm = follower(so_bus(), tmp_path)
    assert list(arm.action_features) == [f"{name}.pos" for name in NAMES]
    assert arm.action_features["gripper.pos"] is Unit.PERCENT
    assert arm.observation_features == arm.action_features
    assert arm.name == "so_follower"
    assert not arm.is_connected


def test_connect_configures_the_motors_and_switches_torque_on(tmp_path: Path) -> None:
    bus = so_bus()
    arm = connected(bus, tmp_path, position_p_coefficient=11)
    assert torques(bus) == [True] * 6
    assert [servo.memory[21] for servo in bus.servos] == [11] * 6
    assert bus.servos[5].memory[36] == 25
    assert [servo.memory[55] for servo in bus.servos] == [1] * 6, "the EEPROM is locked"
    arm.disconnect()
    assert torques(bus) == [False] * 6
    assert not arm.is_connected


def test_a_motor_holds_its_position_when_torque_goes_on(tmp_path: Path) -> None:
    bus = so_bus(ticks=(1500, 2047, 2047, 2047, 2047, 2047))
    bus.servos[0].put(bus.servos[0].goal_position, 3000)
    connected(bus, tmp_path)
    assert bus.servos[0].goal_ticks() == 1500


def test_positions_are_read_and_targets_sent_in_degrees(tmp_path: Path) -> None:
    bus = so_bus(ticks=(2047 + 1024, 2047, 2047, 2047, 2047, LOW))
    arm = connected(bus, tmp_path)
    observation = arm.get_observation()
    assert observation["shoulder_pan.pos"] == pytest.approx(1024 * 360 / 4095)
    assert observation["gripper.pos"] == 0.0
    sent = arm.send_action({"shoulder_pan.pos": 10.0, "gripper.pos": 50.0, "ignored": 1.0})
    assert sent == {"shoulder_pan.pos": 10.0, "gripper.pos": 50.0}
    assert bus.servos[0].goal_ticks() == int(10.0 * 4095 / 360 + 2047)
    assert bus.servos[5].goal_ticks() == (LOW + HIGH) // 2


def test_targets_beyond_the_calibrated_range_are_clipped_and_counted(tmp_path: Path) -> None:
    arm = connected(so_bus(), tmp_path)
    end = (HIGH - LOW) / 2 * 360 / 4095
    sent = arm.send_action({"elbow_flex.pos": 500.0})
    assert sent["elbow_flex.pos"] == pytest.approx(end)
    assert arm.limits["elbow_flex.pos"] == pytest.approx((-end, end))
    assert arm.health().clipped == {"elbow_flex.pos": 1}


def test_a_relative_limit_counts_from_the_measured_position(tmp_path: Path) -> None:
    arm = connected(so_bus(), tmp_path, max_relative_target={"gripper": 5})
    sent = arm.send_action({"gripper.pos": 100.0, "wrist_flex.pos": 30.0})
    assert sent == {"gripper.pos": 55.0, "wrist_flex.pos": 30.0}


def test_an_unknown_motor_in_a_limit_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        follower(so_bus(), tmp_path, max_relative_target={"hand": 5.0})
    assert refused.value.code == "robot.limit-unknown-motor"


def test_the_first_target_starts_at_the_measured_pose(tmp_path: Path) -> None:
    arm = connected(so_bus(), tmp_path, start_speed=10.0)
    sent = arm.send_action({"gripper.pos": 90.0})
    assert sent["gripper.pos"] == pytest.approx(50.0, abs=0.5)


@pytest.mark.parametrize("alert", [OVERLOAD_ALERT, OVERHEAT_ALERT])
def test_an_alert_is_noticed_in_the_cycle_in_which_it_happens(tmp_path: Path, alert: int) -> None:
    bus = so_bus()
    arm = connected(bus, tmp_path)
    arm.get_observation()
    bus.servos[2].alerts |= alert
    with pytest.raises(RobotError, match="elbow_flex") as raised:
        arm.get_observation()
    assert raised.value.code == "robot.motor-alert"
    assert list(arm.health().alerts) == ["elbow_flex"]
    arm.disconnect()
    assert torques(bus) == [False] * 6, "an alert does not prevent torque off"


def test_a_voltage_alert_warns_once_while_the_arm_moves(tmp_path: Path) -> None:
    bus = so_bus()
    arm = connected(bus, tmp_path)
    bus.servos[1].set_supply(volts=3.0, celsius=30)
    with pytest.warns(ProctorWarning, match="shoulder_lift"):
        arm.get_observation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arm.get_observation()
    assert list(arm.health().alerts) == ["shoulder_lift"]


def test_a_burnt_motor_leaves_no_other_motor_on_and_the_port_closes(tmp_path: Path) -> None:
    bus = so_bus()
    arm = connected(bus, tmp_path)
    bus.burn(2)
    with pytest.raises(BusError, match="shoulder_lift"):
        arm.disconnect()
    assert torques(bus) == [False, True, False, False, False, False]
    assert not arm.is_connected
    arm.disconnect()


def test_a_burnt_motor_ends_the_observation(tmp_path: Path) -> None:
    bus = so_bus()
    arm = connected(bus, tmp_path)
    bus.burn(4)
    with pytest.raises(BusError, match="wrist_flex"):
        arm.get_observation()
    assert arm.health().lost_replies["wrist_flex"] > 0


def test_an_unplugged_bus_is_named_and_the_port_closes(tmp_path: Path) -> None:
    bus = so_bus()
    arm = connected(bus, tmp_path)
    bus.unplug()
    with pytest.raises(DeviceNotConnected):
        arm.get_observation()
    with pytest.raises(DeviceNotConnected):
        arm.disconnect()
    assert not arm.is_connected
    bus.plug_in()
    arm.connect()
    assert torques(bus) == [True] * 6


def test_torque_is_kept_at_a_clean_end_only(tmp_path: Path) -> None:
    bus = so_bus()
    arm = connected(bus, tmp_path, disable_torque_on_disconnect=False)
    arm.disconnect()
    assert torques(bus) == [True] * 6
    arm.connect()
    with pytest.raises(ZeroDivisionError), closing_at_the_end(arm):
        _ = 1 / 0
    assert torques(bus) == [False] * 6


def test_a_dip_of_the_power_is_noticed_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = so_bus()
    arm = connected(bus, tmp_path)
    moment = time.perf_counter()
    monkeypatch.setattr(arm.clock, "now", lambda: moment)
    arm.send_action({"gripper.pos": 1.0})
    bus.servos[2].power_cycle()
    moment += 0.5
    arm.send_action({"gripper.pos": 1.0})
    moment += 0.5
    with pytest.raises(RobotError, match=NAMES[2]) as refused:
        arm.send_action({"gripper.pos": 1.0})
    assert refused.value.code == "robot.torque-lost"
    arm.disconnect()


def test_a_stop_switches_off_and_refuses_targets_until_the_next_connection(tmp_path: Path) -> None:
    bus = so_bus()
    arm = connected(bus, tmp_path, disable_torque_on_disconnect=False)
    arm.stop()
    assert torques(bus) == [False] * 6
    assert arm.is_connected
    with pytest.raises(RobotError) as refused:
        arm.send_action({"gripper.pos": 1.0})
    assert refused.value.code == "robot.stopped"
    arm.disconnect()
    arm.connect()
    arm.send_action({"gripper.pos": 1.0})


def test_a_failed_connect_leaves_the_port_closed_and_torque_off(tmp_path: Path) -> None:
    bus = so_bus()
    arm = connected(bus, tmp_path)
    arm.disconnect()
    bus.burn(6)
    with pytest.raises(BusError):
        arm.connect()
    assert not arm.is_connected
    assert torques(bus) == [False] * 6


def test_an_arm_without_calibration_and_operator_is_refused(tmp_path: Path) -> None:
    arm = follower(so_bus(), tmp_path)
    with pytest.raises(RobotError) as refused:
        arm.connect()
    assert refused.value.code == "robot.not-calibrated"
    assert not arm.is_connected


def test_a_difference_of_file_and_motor_is_named(tmp_path: Path) -> None:
    bus = so_bus()
    write_calibration(tmp_path, bus, wrist_roll={"homing_offset": 12})
    with pytest.raises(RobotError, match=r"wrist_roll\.homing_offset") as refused:
        follower(bus, tmp_path).connect()
    assert refused.value.code == "robot.not-calibrated"


def test_a_calibration_of_motors_with_other_ids_is_refused(tmp_path: Path) -> None:
    bus = so_bus()
    write_calibration(tmp_path, bus, wrist_roll={"id": 9})
    with refuses(UsageError, "robot.calibration-invalid"):
        follower(bus, tmp_path).connect()
    assert not any(torques(bus))


def test_enter_writes_the_file_to_the_motors_so_that_it_survives_a_power_cycle(
    tmp_path: Path,
) -> None:
    bus = so_bus()
    write_calibration(tmp_path, bus, wrist_roll={"homing_offset": 12})
    arm = follower(bus, tmp_path)
    arm.connect(ScriptedOperator([""]))
    assert arm.is_calibrated
    arm.disconnect()
    for servo in bus.servos:
        servo.power_cycle()
    assert bus.servos[4].homing_offset == 12


def test_a_leader_reads_and_can_be_moved(tmp_path: Path) -> None:
    bus = so_bus()
    write_calibration(tmp_path, bus)
    arm = SoLeader(SoLeaderConfig(port=plug_in(bus), id="arm", calibration_dir=tmp_path))
    arm.connect()
    assert torques(bus) == [False] * 6
    assert [servo.memory[55] for servo in bus.servos] == [1] * 6
    move_to(bus.servos[5], LOW)
    assert arm.get_action()["gripper.pos"] == 0.0
    assert arm.is_actuated
    assert arm.feedback_features == arm.action_features
    arm.set_torque(on=True)
    arm.send_feedback({"gripper.pos": 100.0})
    assert bus.servos[5].goal_ticks() == HIGH
    arm.set_torque(on=False)
    assert torques(bus) == [False] * 6
    arm.disconnect()


def test_motors_are_set_up_one_at_a_time_and_a_failure_is_repeated(tmp_path: Path) -> None:
    bus = so_bus()
    bus.servos = bus.servos[:2]  # two motors on the bus: refused
    arm = follower(bus, tmp_path)

    class Person(ScriptedOperator):
        def ask(self, text: str) -> str:
            answer = super().ask(text)
            if answer == "only one":
                bus.servos = bus.servos[:1]
            return answer

    person = Person(["", "only one", "s", "s", "s", "s", "s"])
    arm.set_up_motors(person)
    assert bus.servos[0].id == 6
    assert len(person.asked) == 7
    assert not arm.is_connected
