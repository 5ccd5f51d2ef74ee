"""The simulated SO-101: bytes in, movement out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from proctor.robots.base import Unit
from proctor.robots.buses.motor_bus import MotorBus
from proctor.robots.buses.registers import Motor
from proctor.robots.emulation.cell import SimulatedCell
from proctor.robots.emulation.servo import OVERLOAD_ALERT

SO_NAMES = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


def so_motors() -> dict[str, Motor]:
    return {
        name: Motor(number, "sts3215", Unit.PERCENT if name == "gripper" else Unit.DEGREES)
        for number, name in enumerate(SO_NAMES, start=1)
    }


@pytest.fixture
def cell() -> SimulatedCell:
    return SimulatedCell(virtual=True)


@pytest.fixture
def bus(cell: SimulatedCell) -> Iterator[MotorBus]:
    with_bus = _connected(cell, "sim:virtual", so_motors())
    yield with_bus
    with_bus.disconnect(disable_torque=False)


def _connected(cell: SimulatedCell, port: str, motors: dict[str, Motor]) -> MotorBus:
    bus = MotorBus(port, motors, opener=cell.open_port)
    bus.connect()
    bus.calibration = bus.read_calibration()
    return bus


def _settle(cell: SimulatedCell, seconds: float = 1.5) -> None:
    cell.clock.sleep_until(cell.clock.now() + seconds)


def test_the_motors_hold_a_valid_calibration(bus: MotorBus) -> None:
    assert bus.is_calibrated
    pose = bus.sync_read("Present_Position")
    assert pose["shoulder_lift"] == pytest.approx(-55.0, abs=0.1)
    assert pose["gripper"] == pytest.approx(40.0, abs=0.2)


def test_a_goal_moves_the_joint_to_it(cell: SimulatedCell, bus: MotorBus) -> None:
    bus.enable_torque()
    bus.sync_write("Goal_Position", {"shoulder_pan": 30.0, "gripper": 80.0})
    _settle(cell)
    pose = bus.sync_read("Present_Position")
    assert pose["shoulder_pan"] == pytest.approx(30.0, abs=0.5)
    assert pose["gripper"] == pytest.approx(80.0, abs=1.0)
    assert cell.world.angles()["shoulder_pan"] == pytest.approx(math.radians(30.0), abs=0.01)


def test_time_stands_still_between_sleeps(cell: SimulatedCell, bus: MotorBus) -> None:
    bus.enable_torque()
    before = bus.sync_read("Present_Position")
    bus.sync_write("Goal_Position", {"shoulder_pan": 30.0})
    assert bus.sync_read("Present_Position") == before


def test_torque_on_holds_the_pose_and_off_lets_the_arm_sag(
    cell: SimulatedCell, bus: MotorBus
) -> None:
    bus.enable_torque()
    before = bus.sync_read("Present_Position")
    _settle(cell)
    held = bus.sync_read("Present_Position")
    assert held == pytest.approx(before, abs=1.0)
    bus.disable_torque()
    _settle(cell)
    sagged = bus.sync_read("Present_Position")
    assert max(abs(sagged[name] - held[name]) for name in SO_NAMES) > 5.0


def test_a_lower_gain_gives_way_more(cell: SimulatedCell, bus: MotorBus) -> None:
    bus.enable_torque()
    sag = []
    for gain in (16, 1):
        bus.sync_write("P_Coefficient", dict.fromkeys(SO_NAMES, gain), normalize=False)
        _settle(cell)
        world = cell.world
        sag.append(abs(world.targets()["shoulder_lift"] - world.angles()["shoulder_lift"]))
    assert sag[1] > 5 * sag[0]


def test_movement_shows_in_the_velocity_register(cell: SimulatedCell, bus: MotorBus) -> None:
    bus.enable_torque()
    bus.sync_write("Goal_Position", {"shoulder_pan": 60.0})
    _settle(cell, 0.1)
    assert bus.read("Present_Velocity", "shoulder_pan") > 100
    assert bus.read("Moving", "shoulder_pan") == 1


def test_an_overloaded_and_a_burnt_motor_let_go(cell: SimulatedCell, bus: MotorBus) -> None:
    bus.enable_torque()
    cell.follower.servos["shoulder_lift"].alerts |= OVERLOAD_ALERT
    cell.follower.bus.burn(3)
    before = dict(cell.world.angles())
    bus.sync_read("Present_Position", ["shoulder_pan"])
    _settle(cell)
    moved = {name: abs(cell.world.angles()[name] - before[name]) for name in SO_NAMES}
    assert max(moved["shoulder_lift"], moved["elbow_flex"]) > 0.05
    assert moved["shoulder_pan"] < 0.02


def test_equal_runs_give_equal_positions() -> None:
    def run() -> list[dict[str, float]]:
        cell = SimulatedCell(virtual=True)
        bus = _connected(cell, "sim:virtual", so_motors())
        cell.scene.reset(7)
        bus.enable_torque()
        poses = []
        for step in range(20):
            bus.sync_write("Goal_Position", {"shoulder_pan": 2.0 * step, "elbow_flex": 40.0})
            _settle(cell, 1 / 30)
            poses.append(bus.sync_read("Present_Position"))
        return poses

    assert run() == run()


def test_reset_carries_the_arm_home_and_motors_hold_it(cell: SimulatedCell, bus: MotorBus) -> None:
    bus.enable_torque()
    bus.sync_write("Goal_Position", {"shoulder_pan": 60.0})
    _settle(cell)
    cell.scene.reset(3)
    first = cell.scene.state()
    _settle(cell)
    assert bus.read("Present_Position", "shoulder_pan") == pytest.approx(0.0, abs=0.5)
    assert cell.scene.joint_positions()[1] == pytest.approx(-55.0, abs=1.0)
    cell.scene.reset(3)
    assert cell.scene.state() == pytest.approx(first)
    assert not cell.scene.succeeded()


def test_the_leader_stays_where_a_hand_puts_it(cell: SimulatedCell) -> None:
    bus = _connected(cell, "sim:virtual:so_leader", so_motors())
    cell.leader.hold_by_hand({"elbow_flex": math.radians(20.0)})
    _settle(cell)
    assert bus.read("Present_Position", "elbow_flex") == pytest.approx(20.0, abs=0.1)


def test_a_koch_arm_speaks_dynamixel_and_moves(cell: SimulatedCell) -> None:
    models = ("xl430-w250",) * 2 + ("xl330-m288",) * 4
    motors = {
        name: Motor(number, model, Unit.SIGNED_PERCENT)
        for number, (name, model) in enumerate(zip(SO_NAMES, models, strict=True), start=1)
    }
    bus = _connected(cell, "sim:virtual:koch_follower", motors)
    bus.enable_torque()
    bus.sync_write("Goal_Position", {"elbow_flex": 50.0})
    _settle(cell)
    assert bus.read("Present_Position", "elbow_flex") == pytest.approx(50.0, abs=0.5)


def test_wheels_of_a_lekiwi_turn_in_velocity_mode(cell: SimulatedCell) -> None:
    motors = {f"arm_{name}": motor for name, motor in so_motors().items()}
    for number, side in enumerate(("left", "back", "right"), start=7):
        motors[f"base_{side}_wheel"] = Motor(number, "sts3215", Unit.SIGNED_PERCENT)
    bus = _connected(cell, "sim:virtual:lekiwi", motors)
    bus.write("Operating_Mode", "base_left_wheel", 1)
    bus.enable_torque()
    bus.write("Goal_Velocity", "base_left_wheel", -500)
    _settle(cell, 0.5)
    assert bus.read("Present_Velocity", "base_left_wheel") == pytest.approx(-500, abs=5)
