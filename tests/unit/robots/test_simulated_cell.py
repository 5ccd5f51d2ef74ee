"""Robots on simulated ports: the ordinary arm classes, without a calibration file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from proctor.errors import UsageError
from proctor.plugins import find_camera, find_robot, find_teleoperator
from proctor.robots.arms.so import SoFollowerFields
from proctor.robots.base import RealClock, Robot, Teleoperator
from proctor.robots.emulation.cell import cell_for, device_port, forget_cells, parse_port
from proctor.robots.emulation.simulated_camera import SimulatedCameraConfig


@pytest.fixture(autouse=True)
def fresh_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_LEROBOT_CALIBRATION", str(tmp_path))
    forget_cells()
    yield
    forget_cells()


class Screen:
    """An operator who only looks."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tables = 0

    def tell(self, text: str) -> None:
        self.lines.append(text)

    def ask(self, text: str) -> str:
        raise AssertionError(f"a person was asked: {text}")

    def pressed_enter(self) -> bool:
        raise AssertionError("a person was waited for")

    def show_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.tables += 1


def follower(port: str = "sim:virtual", **fields: object) -> Robot:
    plugin = find_robot("so101_follower")
    return plugin.make(plugin.config(type="so101_follower", port=port, **fields))  # type: ignore[call-arg]


def leader(port: str = "sim:virtual") -> Teleoperator:
    plugin = find_teleoperator("so101_leader")
    return plugin.make(plugin.config(type="so101_leader", port=port))  # type: ignore[call-arg]


def test_a_follower_and_a_leader_share_the_cell_and_need_no_calibration() -> None:
    robot, teleop = follower(), leader()
    robot.connect()
    teleop.connect()
    cell = cell_for("sim:virtual")
    cell.leader.hold_by_hand({"shoulder_pan": 0.3})
    for step in range(60):
        robot.send_action(teleop.get_action())
        robot.clock.sleep_until((step + 1) / 30)
    observed = robot.get_observation()
    assert observed["shoulder_pan.pos"] == pytest.approx(np.degrees(0.3), abs=0.5)
    assert robot.scene is cell.scene
    robot.disconnect()
    teleop.disconnect()
    assert not any(servo.torque_is_on for servo in cell.follower.servos.values())


def test_the_simulated_person_calibrates_and_a_new_cell_takes_the_file_over(
    tmp_path: Path,
) -> None:
    screen = Screen()
    robot = follower(id="arm", calibration_dir=tmp_path)
    robot.calibrate(screen)
    assert (tmp_path / "arm.json").exists()
    assert screen.tables > 10
    robot.connect()
    lift = robot.limits["shoulder_lift.pos"]
    assert lift == pytest.approx((-100.0, 100.0), abs=0.5)
    robot.disconnect()
    forget_cells()
    again = follower(id="arm", calibration_dir=tmp_path)
    again.connect()
    assert again.is_calibrated
    assert again.get_observation()["shoulder_lift.pos"] == pytest.approx(-55.0, abs=0.2)
    again.disconnect()


def test_a_person_moves_the_leader_until_it_is_held() -> None:
    teleop = leader()
    teleop.connect()
    first = teleop.get_action()
    teleop.clock.sleep_until(1.0)
    assert teleop.get_action()["wrist_roll.pos"] > first["wrist_roll.pos"] + 1.0
    cell_for("sim:virtual").leader.hold_by_hand({"wrist_roll": 0.0})
    teleop.clock.sleep_until(2.0)
    assert teleop.get_action()["wrist_roll.pos"] == pytest.approx(0.0, abs=0.1)
    teleop.disconnect()


def test_two_arms_on_one_simulated_port_are_two_arms() -> None:
    plugin = find_robot("bi_so_follower")
    fields = SoFollowerFields(port="sim:virtual")
    robot = plugin.make(
        plugin.config(left_arm_config=fields, right_arm_config=fields)  # type: ignore[call-arg]
    )
    robot.connect()
    for step in range(60):
        robot.send_action({"left_wrist_roll.pos": 30.0, "right_wrist_roll.pos": -30.0})
        robot.clock.sleep_until((step + 1) / 30)
    observed = robot.get_observation()
    assert observed["left_wrist_roll.pos"] == pytest.approx(30.0, abs=1.0)
    assert observed["right_wrist_roll.pos"] == pytest.approx(-30.0, abs=1.0)
    robot.disconnect()


def test_virtual_cameras_render_one_image_per_period() -> None:
    camera = {"type": "sim", "width": 32, "height": 24, "fps": 30}
    robot = follower(cameras={"front": camera, "wrist": camera})
    robot.connect()
    first = robot.get_observation()
    assert first["front"].shape == (24, 32, 3)
    assert first["front"].std() > 5
    assert not np.array_equal(first["front"], first["wrist"])
    numbers = [robot.cameras["front"].latest().number]
    for step in range(1, 5):
        robot.clock.sleep_until(step / 60)
        numbers.append(robot.cameras["front"].latest().number)
    assert numbers == [1, 1, 2, 2, 3]
    robot.disconnect()
    assert not robot.cameras["front"].is_connected


def test_real_cameras_render_in_their_own_thread() -> None:
    camera = {"type": "sim", "width": 32, "height": 24, "fps": 30}
    robot = follower("sim", cameras={"front": camera})
    robot.connect()
    first = robot.cameras["front"].latest().number
    deadline = time.monotonic() + 60
    while robot.cameras["front"].latest().number < first + 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert robot.get_observation()["front"].shape == (24, 32, 3)
    robot.disconnect()


def test_real_time_passes_by_itself() -> None:
    robot = follower("sim", start_speed=None)
    robot.connect()
    robot.send_action({"shoulder_pan.pos": 20.0})
    deadline = time.monotonic() + 60
    while robot.get_observation()["shoulder_pan.pos"] < 18.0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    robot.disconnect()


def test_port_names() -> None:
    parsed = parse_port("sim:virtual:left:so_leader")
    assert (parsed.virtual, parsed.side, parsed.device) == (True, "left", "so_leader")
    assert device_port("sim", "so_leader") == "sim:so_leader"
    assert device_port("sim:koch_leader", "so_leader") == "sim:koch_leader"
    assert cell_for("sim") is cell_for("sim:so_leader")
    assert cell_for("sim") is not cell_for("sim:virtual")
    with pytest.raises(UsageError) as wrong:
        parse_port("sim:virtaul")
    assert wrong.value.code == "robot.sim-port"


def test_a_simulated_camera_needs_a_simulated_robot() -> None:
    plugin = find_camera("sim")
    with pytest.raises(UsageError) as wrong:
        plugin.make(SimulatedCameraConfig(), RealClock())
    assert wrong.value.code == "camera.sim-only"
