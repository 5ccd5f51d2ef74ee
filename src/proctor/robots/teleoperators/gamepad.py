"""Teleoperation by gamepad, through pygame (type ``gamepad``).

Axes and buttons are LeRobot's: the left stick moves the hand forward, back, left and right, the
right stick up and down; buttons 6 and 7 close and open the gripper. While recording, button 3
(success) ends the episode, and buttons 0 (record again) and 1 (failure) record it again. In online
learning, button 5 (right bumper) takes over from the policy and hands back.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from proctor.errors import DeviceNotConnected, MissingExtra
from proctor.robots.base import KeySource, Operator, TeleoperatorConfig, TeleoperatorPlugin
from proctor.robots.teleoperators.end_effector import (
    GRIPPER_CLOSE,
    GRIPPER_OPEN,
    GRIPPER_STAY,
    EndEffectorTeleoperator,
    HandMotion,
)
from proctor.settings import setting

DEAD_ZONE = 0.1
_FORWARD_AXIS, _LEFT_AXIS, _UP_AXIS = 1, 0, 3
_CLOSE_BUTTON, _OPEN_BUTTON = 6, 7
_KEYS_OF_BUTTONS = {3: "right", 0: "left", 1: "left", 5: "space"}
"""Buttons that stand for keys of the control loop."""


@dataclass
class GamepadConfig(TeleoperatorConfig):
    """Flags of a gamepad."""

    type: str = "gamepad"
    use_gripper: bool = setting(True, "whether buttons move the gripper too")
    speed: float = setting(0.1, "speed of the hand in metres per second")

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise ValueError(f"speed must be more than 0, got {self.speed}")


def _import_pygame() -> Any:
    """Return pygame, set to work without a display and a focused window."""
    for name, value in {
        "SDL_VIDEODRIVER": "dummy",
        "SDL_JOYSTICK_ALLOW_BACKGROUND_EVENTS": "1",
        "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    }.items():
        os.environ.setdefault(name, value)
    try:
        import pygame
    except ModuleNotFoundError:
        raise MissingExtra("pygame", "gamepad") from None
    return pygame


class GamepadTeleoperator(EndEffectorTeleoperator):
    """A gamepad that moves the hand of the attached robot."""

    name = "gamepad"

    def __init__(self, config: GamepadConfig) -> None:
        super().__init__(use_gripper=config.use_gripper, speed_m_s=config.speed)
        self._pygame = _import_pygame()
        self._joystick: Any = None
        self._keys: KeySource | None = None
        self._down: set[int] = set()

    @property
    def is_connected(self) -> bool:
        """Whether a gamepad is open."""
        return self._joystick is not None

    def use_keys(self, keys: KeySource) -> None:
        """Let buttons stand for keys of the control loop."""
        self._keys = keys

    def connect(self, operator: Operator | None = None) -> None:
        """Open the first gamepad."""
        self._pygame.display.init()
        self._pygame.joystick.init()
        if not self._pygame.joystick.get_count():
            self._pygame.joystick.quit()
            raise DeviceNotConnected("no gamepad is connected", code="teleop.not-connected")
        self._joystick = self._pygame.joystick.Joystick(0)

    def disconnect(self) -> None:
        """Close the gamepad."""
        if self._joystick is not None:
            self._joystick.quit()
            self._joystick = None
            self._pygame.joystick.quit()

    def _motion(self) -> HandMotion:
        self._pygame.event.pump()
        if not self._pygame.joystick.get_count():
            raise DeviceNotConnected("the gamepad is gone", code="teleop.not-connected")
        self._press_keys()
        gripper = GRIPPER_STAY
        if self._use_gripper and self._joystick.get_button(_CLOSE_BUTTON):
            gripper = GRIPPER_CLOSE
        elif self._use_gripper and self._joystick.get_button(_OPEN_BUTTON):
            gripper = GRIPPER_OPEN
        return HandMotion(
            forward=-self._axis(_FORWARD_AXIS),
            left=-self._axis(_LEFT_AXIS),
            up=-self._axis(_UP_AXIS),
            gripper=gripper,
        )

    def _deltas(self, motion: HandMotion) -> tuple[float, float, float]:
        """Return LeRobot's deltas: x is forward, y is left."""
        return motion.forward, motion.left, motion.up

    def _axis(self, number: int) -> float:
        """Return an axis from -1 to 1; small values are the stick's play."""
        value = float(self._joystick.get_axis(number))
        return 0.0 if abs(value) < DEAD_ZONE else value

    def _press_keys(self) -> None:
        """Hand keys to the control loop when their buttons go down."""
        down = {button for button in _KEYS_OF_BUTTONS if self._joystick.get_button(button)}
        for button in sorted(down - self._down):
            if self._keys is not None:
                self._keys.press(_KEYS_OF_BUTTONS[button])
        self._down = down


PLUGIN = TeleoperatorPlugin(GamepadConfig, GamepadTeleoperator, "a gamepad that moves the hand")
