"""Connects the devices of a control loop, and ends with motors off and ports closed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from proctor import plugins
from proctor.control.loop.stop_signals import StopSignals
from proctor.control.loop.units import attach_teleoperator
from proctor.control.terminal.keys import ControlKey, KeyHub, KeyReader
from proctor.errors import RobotError, exit_code_of, strip_control_codes
from proctor.robots.base import (
    Operator,
    Robot,
    RobotConfig,
    Teleoperator,
    TeleoperatorConfig,
)

REACTION_S = 0.5
"""A loop that does not notice the emergency stop within this time is interrupted."""


def make_robot(config: RobotConfig) -> Robot:
    """Make the robot of ``--robot.type``, not connected."""
    with plugins.blame_plugin("robots", config.type):
        return plugins.find_robot(config.type).make(config)


def make_teleoperator(config: TeleoperatorConfig) -> Teleoperator:
    """Make the teleoperator of ``--teleop.type``, not connected."""
    with plugins.blame_plugin("teleoperators", config.type):
        return plugins.find_teleoperator(config.type).make(config)


class EmergencyStop(RobotError):
    """A person pressed the emergency key; the motors are switched off."""

    default_code = "robot.emergency-stop"


class _EmergencyReader(KeyReader):
    """Notices the emergency key, and interrupts a main thread that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.is_pressed = False
        self._timer: threading.Timer | None = None

    def add(self, key: str) -> None:
        if key in ControlKey.EMERGENCY_STOP and not self.is_pressed:
            self.is_pressed = True
            main = threading.main_thread().ident
            assert main is not None
            self._timer = threading.Timer(REACTION_S, signal.pthread_kill, (main, signal.SIGUSR1))
            self._timer.daemon = True
            self._timer.start()

    def settle(self) -> None:
        """The main thread has noticed: interrupt it no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


class ControlSession:
    """The devices of a control loop, connected inside a ``with`` block.

    The teleoperator is connected first and the robot last, because its motors hold then. However
    the block ends, all devices are closed. After a failure, SIGTERM or SIGHUP the motors are
    switched off first, in spite of the config. Failures while closing are printed, one line
    each; the first one is raised if nothing else is.

    Signals: see ``StopSignals``. A signal after the second one ends the process at once; an arm's
    torque guard then switches its motors off.
    """

    def __init__(
        self,
        robot: Robot | None,
        teleop: Teleoperator | None = None,
        *,
        operator: Operator | None = None,
        keys: KeyHub | None = None,
    ) -> None:
        """Take devices that are not connected; ``operator`` calibrates them if need be."""
        self._robot, self.teleop, self._operator = robot, teleop, operator
        self.keys = keys or KeyHub()
        self.signals = StopSignals()
        self._emergency = _EmergencyReader()
        self._failures: list[Exception] = []
        self._usr1: Any = None

    @property
    def robot(self) -> Robot:
        """The robot of a session that has one."""
        assert self._robot is not None
        return self._robot

    def __enter__(self) -> ControlSession:
        self.signals.__enter__()
        try:
            self._usr1 = signal.signal(signal.SIGUSR1, self._on_emergency)
            self.keys.__enter__()
            self.keys.attach(self._emergency)
            self._connect()
        except BaseException:
            self._close(*sys.exc_info())
            raise
        return self

    def _connect(self) -> None:
        if self.teleop is not None:
            self.teleop.use_keys(self.keys)
            if self._robot is not None:
                attach_teleoperator(self.teleop, self._robot)
            self.teleop.connect(self._operator)
        if self._robot is not None:
            self._robot.connect(self._operator)

    def should_end(self) -> bool:
        """Return whether a stop signal came; loops ask in every tick.

        Raises:
            EmergencyStop: the emergency key was pressed.
        """
        if self._emergency.is_pressed:
            raise EmergencyStop("emergency stop: the motors are switched off")
        return self.signals.received is not None

    def _on_emergency(self, signum: int, frame: Any) -> None:
        raise EmergencyStop("emergency stop: the motors are switched off")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(kind, error, trace)
        if error is None and self._failures:
            raise self._failures[0]

    def _close(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            with self.signals.deferred():
                self._emergency.settle()
                self._close_devices(failed=error is not None)
        except KeyboardInterrupt as again:
            self.keys.__exit__()
            os._exit(exit_code_of(again))  # guards switch the motors off
        finally:
            self.keys.__exit__()
            if self._usr1 is not None:
                signal.signal(signal.SIGUSR1, self._usr1)
            self.signals.__exit__()
        hidden = self._failures if error is not None else self._failures[1:]
        for failure in hidden:
            print(f"proctor: error: {strip_control_codes(str(failure))}", file=sys.stderr)

    def _close_devices(self, *, failed: bool) -> None:
        clean = not failed and self.signals.received in (None, signal.SIGINT)
        if not clean:
            for switch_off in self._switches():
                self._try(switch_off)
        for device in (self._robot, self.teleop):
            if device is not None:
                self._try(device.disconnect)

    def _switches(self) -> Iterator[Callable[[], None]]:
        """Yield functions that switch off the motors of the connected devices."""
        if self._robot is not None and self._robot.is_connected:
            yield self._robot.stop
        teleop = self.teleop
        if teleop is not None and teleop.is_connected and teleop.is_actuated:
            yield lambda: teleop.set_torque(on=False)

    def _try(self, step: Callable[[], None]) -> None:
        """Run one step of closing; note its failure, so that the next steps run too."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  third-party drivers raise anything
            self._failures.append(error)
