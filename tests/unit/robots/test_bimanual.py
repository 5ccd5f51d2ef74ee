"""Two SO arms as one device: flags, channels, parallel reads and a safe end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proctor.config.flags.parsing import decode, flags_of
from proctor.errors import BusError, RobotError, UsageError
from proctor.plugins import find_robot, find_teleoperator
from proctor.robots.arms.bimanual import (
    BiSoFollower,
    BiSoFollowerConfig,
    BiSoLeader,
    BiSoLeaderConfig,
)
from proctor.robots.arms.so import GAINS, SoFollowerFields, SoLeaderFields, so_motors
from proctor.robots.emulation.emulated_bus import EmulatedBus
from proctor.robots.emulation.servo import OVERLOAD_ALERT
from tests.unit.robots.arm_bench import plug_in, so_bus, torques


def calibrate(bus: EmulatedBus, file: Path) -> None:
    """Write a file with the values that factory-new motors hold."""
    entries = {
        name: {
            "id": motor.id,
            "drive_mode": 0,
            "homing_offset": 0,
            "range_min": 0,
            "range_max": 4095,
        }
        for name, motor in so_motors(use_degrees=True).items()
    }
    file.write_text(json.dumps(entries))


def followers(folder: Path) -> tuple[BiSoFollower, EmulatedBus, EmulatedBus]:
    left, right = so_bus((2047,) * 6), so_bus((3071,) * 6)
    calibrate(left, folder / "pair_left.json")
    calibrate(right, folder / "pair_right.json")
    config = BiSoFollowerConfig(
        id="pair",
        calibration_dir=folder,
        left_arm_config=SoFollowerFields(port=plug_in(left), start_speed=None),
        right_arm_config=SoFollowerFields(port=plug_in(right), start_speed=None),
    )
    return BiSoFollower(config), left, right


def test_flags_of_both_arms_are_decoded() -> None:
    config = decode(
        find_robot("bi_so_follower").config,
        {
            "robot.id": "pair",
            "robot.left_arm_config.port": "/dev/a",
            "robot.right_arm_config.port": "/dev/b",
            "robot.right_arm_config.max_relative_target": "{gripper: 5}",
            "robot.left_arm_config.max_relative_target": "7",
        },
        prefix="robot.",
    )
    assert isinstance(config, BiSoFollowerConfig)
    assert config.left_arm_config.port == "/dev/a"
    assert config.left_arm_config.max_relative_target == 7
    assert config.right_arm_config.max_relative_target == {"gripper": 5}
    assert config.right_arm_config.position_p_coefficient == GAINS["P_Coefficient"]


def test_flags_are_decoded_in_the_section_of_a_command() -> None:
    @dataclass
    class Command:
        robot: BiSoFollowerConfig = field()

    values = {
        "robot.left_arm_config.port": "/dev/a",
        "robot.right_arm_config.port": "/dev/b",
        "robot.left_arm_config.use_degrees": "false",
    }
    command = decode(Command, values, sections={"robot": BiSoFollowerConfig})
    assert not command.robot.left_arm_config.use_degrees
    assert command.robot.right_arm_config.use_degrees
    names = [flag.name for flag in flags_of(Command, sections={"robot": BiSoFollowerConfig})]
    assert "robot.right_arm_config.num_read_retries" in names


def test_a_missing_port_of_one_arm_is_named() -> None:
    with pytest.raises(UsageError, match=r"right_arm_config") as refused:
        decode(
            find_teleoperator("bi_so_leader").config,
            {"teleop.left_arm_config.port": "/dev/a"},
            prefix="teleop.",
        )
    assert refused.value.code == "flag.missing"


def test_channels_have_prefixes_and_go_to_their_arm(tmp_path: Path) -> None:
    robot, left, right = followers(tmp_path)
    names = list(robot.action_features)
    assert names[0] == "left_shoulder_pan.pos"
    assert names[6] == "right_shoulder_pan.pos"
    robot.connect()
    observation = robot.get_observation()
    assert list(observation) == names
    assert observation["right_elbow_flex.pos"] == pytest.approx(90.0, abs=0.1)
    sent = robot.send_action({"left_gripper.pos": 0.0, "right_gripper.pos": 100.0})
    assert sent == {"left_gripper.pos": 0.0, "right_gripper.pos": 100.0}
    assert (left.servos[5].goal_ticks(), right.servos[5].goal_ticks()) == (0, 4095)
    assert set(robot.limits) == set(names)
    assert robot.health().requests > 0
    robot.disconnect()
    assert not any(torques(left) + torques(right))


def test_an_alert_names_the_arm_and_both_are_switched_off(tmp_path: Path) -> None:
    robot, left, right = followers(tmp_path)
    robot.connect()
    right.servos[0].alerts |= OVERLOAD_ALERT
    with pytest.raises(RobotError, match="pair_right") as raised:
        robot.get_observation()
    assert raised.value.code == "robot.motor-alert"
    robot.stop()
    assert not any(torques(left) + torques(right))


def test_a_failure_of_one_arm_does_not_keep_the_other_on(tmp_path: Path) -> None:
    robot, left, right = followers(tmp_path)
    robot.connect()
    left.burn(1)
    with pytest.raises(BusError):
        robot.disconnect()
    assert torques(left) == [True] + [False] * 5
    assert not any(torques(right))
    assert not robot.is_connected


def test_an_arm_that_cannot_connect_switches_the_other_one_off(tmp_path: Path) -> None:
    robot, left, right = followers(tmp_path)
    right.burn(1)
    with pytest.raises(BusError):
        robot.connect()
    assert not any(torques(left))
    assert not robot.is_connected


def test_two_leaders_are_one_action(tmp_path: Path) -> None:
    left, right = so_bus(), so_bus()
    calibrate(left, tmp_path / "None.json")
    leader = BiSoLeader(
        BiSoLeaderConfig(
            calibration_dir=tmp_path,
            left_arm_config=SoLeaderFields(port=plug_in(left)),
            right_arm_config=SoLeaderFields(port=plug_in(right)),
        )
    )
    leader.connect()
    assert list(leader.get_action()) == list(leader.action_features)
    leader.set_torque(on=True)
    leader.send_feedback({"left_gripper.pos": 0.0, "right_gripper.pos": 100.0})
    assert (left.servos[5].goal_ticks(), right.servos[5].goal_ticks()) == (0, 4095)
    leader.disconnect()
    assert not any(torques(left) + torques(right))
