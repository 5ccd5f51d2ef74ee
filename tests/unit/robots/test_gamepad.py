"""The gamepad: a fake of pygame's joysticks, and pygame itself without one."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from proctor.control.terminal.keys import KeyHub
from proctor.errors import DeviceNotConnected, MissingExtra
from proctor.robots.teleoperators.gamepad import GamepadConfig, GamepadTeleoperator
from tests.refusals import refuses
from tests.unit.robots.so101_robot import So101Robot, hand_position


class FakeJoystick:
    """A joystick whose sticks and buttons a test moves."""

    def __init__(self) -> None:
        self.axes = [0.0] * 4
        self.down: set[int] = set()
        self.count = 1
        self.closed = False

    def get_axis(self, number: int) -> float:
        return self.axes[number]

    def get_button(self, number: int) -> bool:
        return number in self.down

    def quit(self) -> None:
        self.closed = True

    def as_pygame(self) -> SimpleNamespace:
        joystick = SimpleNamespace(
            init=lambda: None,
            quit=lambda: None,
            get_count=lambda: self.count,
            Joystick=lambda number: self,
        )
        return SimpleNamespace(
            joystick=joystick,
            display=SimpleNamespace(init=lambda: None),
            event=SimpleNamespace(pump=lambda: None),
        )


@pytest.fixture
def joystick(monkeypatch: pytest.MonkeyPatch) -> FakeJoystick:
    fake = FakeJoystick()
    monkeypatch.setitem(sys.modules, "pygame", fake.as_pygame())  # type: ignore[arg-type]
    return fake


@pytest.fixture
def gamepad(joystick: FakeJoystick) -> GamepadTeleoperator:
    gamepad = GamepadTeleoperator(GamepadConfig())
    gamepad.connect()
    return gamepad


def test_sticks_and_buttons_are_lerobots(
    gamepad: GamepadTeleoperator, joystick: FakeJoystick
) -> None:
    joystick.axes = [0.5, -0.75, 0.9, 0.25]
    joystick.down = {7}

    assert gamepad.get_action() == {
        "delta_x": 0.75,
        "delta_y": -0.5,
        "delta_z": -0.25,
        "gripper": 2.0,
    }
    joystick.down = {6}
    assert gamepad.get_action()["gripper"] == 0.0
    joystick.down = set()
    assert gamepad.get_action()["gripper"] == 1.0


def test_the_play_of_a_stick_is_no_motion(
    gamepad: GamepadTeleoperator, joystick: FakeJoystick
) -> None:
    joystick.axes = [0.09, -0.09, 0.0, 0.05]

    assert set(gamepad.get_action().values()) == {0.0, 1.0}


def test_a_stick_moves_the_hand_of_an_so101(
    gamepad: GamepadTeleoperator, joystick: FakeJoystick
) -> None:
    robot = So101Robot()
    robot.connect()
    gamepad.attach(robot)
    start = hand_position(gamepad.get_action())
    joystick.axes = [0.0, -0.5, 0.0, 0.0]
    robot.clock.sleep_until(0.1)

    moved = hand_position(gamepad.get_action()) - start
    np.testing.assert_allclose(moved, (0.005, 0, 0), atol=1e-3)


def test_buttons_stand_for_keys_of_the_loop_once_for_each_press(
    gamepad: GamepadTeleoperator, joystick: FakeJoystick
) -> None:
    hub = KeyHub()
    reader = hub.reader()
    gamepad.use_keys(hub)
    for down in ({3}, {3}, set(), {3}, {0}):
        joystick.down = set(down)
        gamepad.get_action()

    assert reader.poll() == ["right", "right", "left"]


def test_an_unplugged_gamepad_is_told(gamepad: GamepadTeleoperator, joystick: FakeJoystick) -> None:
    joystick.count = 0

    with refuses(DeviceNotConnected, "teleop.not-connected"):
        gamepad.get_action()


def test_disconnect_closes_the_gamepad(
    gamepad: GamepadTeleoperator, joystick: FakeJoystick
) -> None:
    gamepad.disconnect()
    gamepad.disconnect()

    assert joystick.closed
    assert not gamepad.is_connected
    with refuses(DeviceNotConnected, "teleop.not-connected"):
        gamepad.get_action()


def test_a_missing_gamepad_is_refused_by_pygame_itself() -> None:
    gamepad = GamepadTeleoperator(GamepadConfig())

    with refuses(DeviceNotConnected, "teleop.not-connected"):
        gamepad.connect()


def test_pygame_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)

    with pytest.raises(MissingExtra):
        GamepadTeleoperator(GamepadConfig())
