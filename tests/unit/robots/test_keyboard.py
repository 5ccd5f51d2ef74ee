"""Keyboard teleoperators, with keys of a terminal's hub and recorded events of an input device."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from proctor.control.terminal.keys import KeyHub
from proctor.errors import DeviceNotConnected, UsageError
from proctor.plugins import find_teleoperator
from proctor.robots.base import Unit
from proctor.robots.teleoperators.key_input import HOLD_S, DeviceKeyInput, TerminalKeyInput
from proctor.robots.teleoperators.keyboard import (
    KeyboardConfig,
    KeyboardEndEffector,
    KeyboardEndEffectorConfig,
    KeyboardTeleoperator,
)
from tests.fake_robots import FakeRobot
from tests.refusals import refuses
from tests.unit.robots.so101_robot import So101Robot, hand_position

UP, LEFT, RIGHT_SHIFT, RIGHT_CTRL, W, S, D = 103, 105, 54, 97, 17, 31, 32


class LiveHub(KeyHub):
    """A hub with a person."""

    is_live = True


class TellingOperator:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def tell(self, text: str) -> None:
        self.told.append(text)


@pytest.fixture
def hub() -> LiveHub:
    return LiveHub()


@pytest.fixture
def robot() -> FakeRobot:
    robot = FakeRobot()
    robot.connect()
    return robot


def keyboard_for(robot: FakeRobot, hub: KeyHub, **fields: Any) -> KeyboardTeleoperator:
    keyboard = KeyboardTeleoperator(KeyboardConfig(**fields))
    keyboard.attach(robot)
    keyboard.use_keys(hub)
    keyboard.connect()
    return keyboard


def press(hub: KeyHub, keys: str) -> None:
    for key in keys:
        hub.press(key)


def test_keys_move_the_joints_of_the_robot_from_where_they_are(
    robot: FakeRobot, hub: LiveHub
) -> None:
    robot.positions |= {"shoulder.pos": 10.0, "elbow.pos": -5.0, "gripper.pos": 50.0}
    keyboard = keyboard_for(robot, hub)

    assert keyboard.get_action() == robot.positions
    press(hub, "wwdt")
    assert keyboard.get_action() == {
        "shoulder.pos": 14.0,
        "elbow.pos": -7.0,
        "gripper.pos": 52.0,
    }
    press(hub, "s")
    assert keyboard.get_action()["shoulder.pos"] == 12.0


def test_a_released_key_leaves_the_target_where_it_is(robot: FakeRobot, hub: LiveHub) -> None:
    keyboard = keyboard_for(robot, hub)
    press(hub, "w")

    assert keyboard.get_action() == keyboard.get_action()


def test_plus_and_minus_change_the_step(robot: FakeRobot, hub: LiveHub) -> None:
    keyboard = keyboard_for(robot, hub, step=1.0)
    press(hub, "+w-w-w")

    assert keyboard.get_action()["shoulder.pos"] == 2.0 + 1.0 + 0.5


def test_targets_stay_inside_the_robots_limits(robot: FakeRobot, hub: LiveHub) -> None:
    keyboard = keyboard_for(robot, hub, step=16.0)
    press(hub, "w" * 10 + "g" * 3)
    action = keyboard.get_action()
    press(hub, "s")

    assert (action["shoulder.pos"], action["gripper.pos"]) == (90.0, 0.0)
    assert keyboard.get_action()["shoulder.pos"] == 74.0


def test_an_episode_begins_at_the_pose_of_the_robot(robot: FakeRobot, hub: LiveHub) -> None:
    keyboard = keyboard_for(robot, hub)
    press(hub, "w")
    keyboard.get_action()
    robot.positions["shoulder.pos"] = -30.0

    assert keyboard.get_action()["shoulder.pos"] == 2.0
    keyboard.start_episode()
    assert keyboard.get_action()["shoulder.pos"] == -30.0


def test_the_loop_and_the_keyboard_both_get_every_key(robot: FakeRobot, hub: LiveHub) -> None:
    loop = hub.reader()
    keyboard = keyboard_for(robot, hub)
    press(hub, "w")
    hub.press("right")

    assert loop.poll() == ["w", "right"]
    assert keyboard.get_action()["shoulder.pos"] == 2.0


def test_velocities_last_only_while_a_key_is_held(hub: LiveHub, tmp_path: Path) -> None:
    class Base(FakeRobot):
        action_features: ClassVar[Any] = {
            "x.vel": Unit.METRES_PER_SECOND,
            "theta.vel": Unit.DEGREES_PER_SECOND,
        }
        limits: ClassVar[Any] = {}

    robot = Base()
    robot.connect()
    robot.positions = {"x.vel": 0.0, "theta.vel": 0.0}
    path = events_file(tmp_path, (W, 1))
    keyboard = keyboard_for(robot, hub, device=str(path))

    assert keyboard.get_action() == {"x.vel": 0.1, "theta.vel": 0.0}
    write_events(path, (D, 1))
    assert keyboard.get_action() == {"x.vel": 0.1, "theta.vel": -30.0}
    write_events(path, (W, 0), (D, 0))
    assert keyboard.get_action() == {"x.vel": 0.0, "theta.vel": 0.0}


def test_more_channels_than_keys_are_refused() -> None:
    class Hand(FakeRobot):
        action_features: ClassVar[Any] = {f"finger{i}.pos": Unit.DEGREES for i in range(10)}

    with refuses(UsageError, "teleop.too-many-channels"):
        KeyboardTeleoperator(KeyboardConfig()).attach(Hand())


def test_the_operator_is_told_the_keys(robot: FakeRobot, hub: LiveHub) -> None:
    keyboard, operator = KeyboardTeleoperator(KeyboardConfig()), TellingOperator()
    keyboard.attach(robot)
    keyboard.use_keys(hub)
    keyboard.connect(operator)  # type: ignore[arg-type]

    assert all(channel in operator.told[0] for channel in robot.action_features)


@pytest.mark.parametrize("hub", [None, KeyHub()])
def test_a_keyboard_needs_a_terminal(robot: FakeRobot, hub: KeyHub | None) -> None:
    keyboard = KeyboardTeleoperator(KeyboardConfig())
    keyboard.attach(robot)
    if hub is not None:
        keyboard.use_keys(hub)

    with refuses(DeviceNotConnected, "teleop.no-keys"):
        keyboard.connect()
    assert not keyboard.is_connected


def test_a_keyboard_without_a_robot_has_nothing_to_move(hub: LiveHub) -> None:
    keyboard = KeyboardTeleoperator(KeyboardConfig())
    keyboard.use_keys(hub)
    keyboard.connect()

    with refuses(DeviceNotConnected, "teleop.not-attached"):
        keyboard.get_action()


def test_a_terminals_key_is_held_until_its_repeats_end(hub: LiveHub) -> None:
    now = 0.0
    keys = TerminalKeyInput(hub, lambda: now)
    keys.open()
    hub.press("a")

    assert keys.poll().held == {"a"}
    now = 0.9 * HOLD_S
    assert keys.poll().held == {"a"}
    hub.press("a")
    keys.poll()
    now += 0.9 * HOLD_S
    assert keys.poll().held == {"a"}
    now += 0.2 * HOLD_S
    assert keys.poll().held == frozenset()


def events_file(folder: Path, *events: tuple[int, int]) -> Path:
    path = folder / "event3"
    path.touch()
    write_events(path, *events)
    return path


def write_events(path: Path, *events: tuple[int, int]) -> None:
    """Append key events as the kernel writes them, each with its scan code and a report."""
    with path.open("ab") as device:
        for code, value in events:
            for kind, number, what in ((4, 4, code), (1, code, value), (0, 0, 0)):
                device.write(struct.pack("@llHHi", 1700000000, 5, kind, number, what))


def test_an_input_device_tells_presses_repeats_and_releases(tmp_path: Path) -> None:
    path = events_file(tmp_path, (W, 1), (W, 2), (RIGHT_SHIFT, 1))
    keys = DeviceKeyInput(str(path))
    keys.open()
    first = keys.poll()
    write_events(path, (W, 0), (S, 1), (S, 0), (240, 1))
    second = keys.poll()

    assert first.pressed == ("w", "w", "right_shift")
    assert first.held == {"w", "right_shift"}
    assert second.pressed == ("s",)
    assert second.held == {"right_shift", "s"}
    assert keys.poll().held == {"right_shift"}
    keys.close()


def test_half_an_event_waits_for_its_rest(tmp_path: Path) -> None:
    path = events_file(tmp_path)
    event = struct.pack("@llHHi", 0, 0, 1, W, 1)
    keys = DeviceKeyInput(str(path))
    keys.open()
    path.write_bytes(event[:10])

    assert keys.poll().pressed == ()
    with path.open("ab") as device:
        device.write(event[10:])
    assert keys.poll().pressed == ("w",)
    keys.close()


def test_a_quiet_input_device_never_blocks(tmp_path: Path) -> None:
    fifo = tmp_path / "event4"
    os.mkfifo(fifo)
    keys = DeviceKeyInput(str(fifo))
    keys.open()
    writer = os.open(fifo, os.O_WRONLY)

    assert keys.poll().pressed == ()
    os.close(writer)
    keys.close()


def test_a_missing_input_device_is_refused(tmp_path: Path) -> None:
    with refuses(DeviceNotConnected, "teleop.no-keys"):
        DeviceKeyInput(str(tmp_path / "event9")).open()


def test_an_input_device_that_was_closed_tells_nothing(tmp_path: Path) -> None:
    keys = DeviceKeyInput(str(events_file(tmp_path, (W, 1))))
    keys.open()
    keys.close()

    with refuses(DeviceNotConnected, "teleop.no-keys"):
        keys.poll()


@pytest.fixture
def ee(hub: LiveHub) -> Iterator[KeyboardEndEffector]:
    keyboard = KeyboardEndEffector(KeyboardEndEffectorConfig())
    keyboard.use_keys(hub)
    keyboard.connect()
    yield keyboard
    keyboard.disconnect()


@pytest.mark.parametrize(
    ("key", "delta"),
    [
        ("left", (1, 0, 0, 1)),
        ("right", (-1, 0, 0, 1)),
        ("up", (0, -1, 0, 1)),
        ("down", (0, 1, 0, 1)),
        ("right_shift", (0, 0, 1, 1)),
        ("shift", (0, 0, -1, 1)),
        ("ctrl", (0, 0, 0, 0)),
        ("right_ctrl", (0, 0, 0, 2)),
        ("w", (0, -1, 0, 1)),
        ("a", (1, 0, 0, 1)),
        ("x", (0, 0, 0, 1)),
    ],
)
def test_without_a_robot_keys_are_lerobots_deltas(
    ee: KeyboardEndEffector, hub: LiveHub, key: str, delta: tuple[float, ...]
) -> None:
    hub.press(key)

    action = ee.get_action()
    assert list(action) == list(ee.action_features) == ["delta_x", "delta_y", "delta_z", "gripper"]
    assert tuple(action.values()) == delta


def test_the_gripper_can_be_left_out(hub: LiveHub) -> None:
    keyboard = KeyboardEndEffector(KeyboardEndEffectorConfig(use_gripper=False))
    keyboard.use_keys(hub)
    keyboard.connect()

    assert list(keyboard.get_action()) == ["delta_x", "delta_y", "delta_z"]


@pytest.mark.parametrize(
    ("key", "direction"),
    [("w", (1, 0, 0)), ("s", (-1, 0, 0)), ("a", (0, 1, 0)), ("e", (0, 0, 1)), ("c", (0, 0, -1))],
)
def test_keys_move_the_hand_of_an_so101(
    ee: KeyboardEndEffector, hub: LiveHub, key: str, direction: tuple[int, int, int]
) -> None:
    robot = So101Robot()
    robot.connect()
    ee.attach(robot)
    start = hand_position(ee.get_action())
    for _ in range(5):
        robot.clock.sleep_until(robot.clock.now() + 0.05)
        hub.press(key)
        robot.send_action(ee.get_action())

    moved = hand_position(robot.positions) - start
    assert list(ee.action_features) == list(robot.action_features)
    np.testing.assert_allclose(moved, 0.025 * np.array(direction), atol=0.003)


def test_keys_open_and_close_the_gripper_of_an_so101(ee: KeyboardEndEffector, hub: LiveHub) -> None:
    robot = So101Robot()
    robot.connect()
    ee.attach(robot)
    start = ee.get_action()["gripper.pos"]
    robot.clock.sleep_until(0.1)
    hub.press("o")

    assert ee.get_action()["gripper.pos"] == pytest.approx(start + 10)


def test_a_hand_out_of_reach_stays(ee: KeyboardEndEffector, hub: LiveHub) -> None:
    robot = So101Robot()
    robot.connect()
    ee.attach(robot)
    for _ in range(40):
        robot.clock.sleep_until(robot.clock.now() + 0.1)
        hub.press("w")
        robot.send_action(ee.get_action())

    assert np.linalg.norm(hand_position(robot.positions)) < 0.6
    assert all(
        low - 1e-3 <= robot.positions[name] <= high + 1e-3
        for name, (low, high) in robot.limits.items()
    )


def test_a_hand_cannot_be_moved_by_a_robot_in_other_units(ee: KeyboardEndEffector) -> None:
    robot = So101Robot()
    robot.units = dict.fromkeys(robot.units, Unit.SIGNED_PERCENT)

    with refuses(UsageError, "teleop.wrong-robot"):
        ee.attach(robot)


def test_both_are_found_by_lerobots_names() -> None:
    assert find_teleoperator("keyboard").make(KeyboardConfig()).name == "keyboard"
    assert find_teleoperator("keyboard_ee").make(KeyboardEndEffectorConfig()).name == "keyboard_ee"
