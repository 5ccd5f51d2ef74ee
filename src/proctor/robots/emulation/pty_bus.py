"""An emulated servo bus behind a pseudo terminal, for drivers of another process.

``python -m proctor.robots.emulation.pty_bus --arm=so_follower`` prints the terminal's path and
serves until SIGTERM. Motors answer only at their own baud rate. Standard input takes one JSON
object per line:

{"fault": "drop", "motor": 3, "skip": 0, "count": 1}    kinds of ``FaultKind``; "error": bits
{"burn": 3}, {"overload": 3}, {"unplug": true}, {"plug_in": true}, {"power_cycle": true}
{"hand": {"elbow_flex": 0.5}}    a person holds the limp arm, in radians; null: lets go
{"sweep": true}    a person moves the limp arm through all ranges; false: stops
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import signal
import struct
import sys
import time
import tty
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proctor.robots.buses.calibration import MotorCalibration, save_calibration
from proctor.robots.emulation.arm_models import ARM_MODELS, ArmModel
from proctor.robots.emulation.cell import SimulatedCell
from proctor.robots.emulation.dynamixel_servo import DynamixelServo
from proctor.robots.emulation.emulated_bus import Fault, FaultKind
from proctor.robots.emulation.servo import OVERLOAD_ALERT, Servo
from proctor.robots.emulation.simulated_arm import SimulatedArm

_TCGETS2 = 0x802C542A
_OUTPUT_SPEED = slice(40, 44)
"""Of Linux' struct termios2: c_ospeed."""
_STATE_EVERY_S = 0.05
_IDLE_S = 0.05


class PtyBus:
    """Serves an arm's bus on a pseudo terminal."""

    def __init__(
        self,
        arm: SimulatedArm,
        model: ArmModel,
        *,
        link: Path | None = None,
        state_file: Path | None = None,
    ) -> None:
        self._arm, self._model, self._link, self._state_file = arm, model, link, state_file
        self._state: dict[str, Any] = {}
        self._state_due = 0.0
        self._packets = 0
        self._ends: tuple[int, int] | None = None
        """Both ends of the terminal: the host's end stays open while no host has it open."""
        self.path = ""
        self.plug_in()

    def plug_in(self) -> None:
        """Make the terminal; the link, if there is one, leads to it."""
        self.unplug()
        ends = os.openpty()
        for end in ends:
            tty.setraw(end)
        self._ends = ends
        self.path = os.ttyname(ends[1])
        if self._link is not None:
            staged = self._link.with_name(self._link.name + ".new")
            staged.unlink(missing_ok=True)
            staged.symlink_to(self.path)
            staged.replace(self._link)

    def unplug(self) -> None:
        """Close the terminal, as a pulled cable; the motors go on as they were."""
        ends, self._ends = self._ends, None
        for end in ends or ():
            os.close(end)
        if self._link is not None and ends is not None:
            self._link.unlink(missing_ok=True)

    def serve(self, stop: int) -> None:
        """Answer the host until the file descriptor ``stop`` is readable."""
        orders = sys.stdin.fileno()
        watched = {stop, orders}
        unread = b""
        while True:
            ports = () if self._ends is None else (self._ends[0],)
            ready, _, _ = select.select([*watched, *ports], [], [], _IDLE_S)
            if stop in ready:
                return
            if orders in ready:
                received = os.read(orders, 4096)
                if not received:
                    watched.discard(orders)
                *lines, unread = (unread + received).split(b"\n")
                for line in lines:
                    self.execute(json.loads(line))
            elif ports and ports[0] in ready:
                self._answer(ports[0])
            self._write_state()

    def execute(self, order: dict[str, Any]) -> None:
        """Execute one object of standard input."""
        bus = self._arm.bus
        if "fault" in order:
            bus.inject(
                Fault(
                    FaultKind(order["fault"]),
                    order.get("motor"),
                    order.get("skip", 0),
                    order.get("count", 1),
                    order.get("error", 0),
                )
            )
        if "burn" in order:
            bus.burn(order["burn"])
        for servo in bus.servos:
            if servo.id == order.get("overload"):
                servo.alerts |= OVERLOAD_ALERT
            if order.get("power_cycle"):
                servo.power_cycle()
        if "hand" in order:
            self._arm.hand = order["hand"]
        if "sweep" in order:
            self._arm.person = self._model.sweep if order["sweep"] else None
        if order.get("unplug"):
            self.unplug()
        if order.get("plug_in"):
            self.plug_in()
        self._state_due = 0.0

    def close(self) -> None:
        """Write the last state and remove the terminal and its link."""
        self._state_due = 0.0
        self._write_state()
        self.unplug()

    def _answer(self, port: int) -> None:
        assert self._ends is not None
        answer = self._arm.bus.receive(os.read(port, 4096), host_baudrate(self._ends[1]))
        self._packets += 1
        if answer:
            os.write(port, answer)

    def _write_state(self) -> None:
        """Write torque and positions to the state file: torque at once, the rest now and then."""
        if self._state_file is None:
            return
        torque = {name: servo.torque_is_on for name, servo in self._arm.servos.items()}
        now = time.monotonic()
        if now < self._state_due and torque == self._state.get("torque"):
            return
        self._state_due = now + _STATE_EVERY_S
        state = {
            "torque": torque,
            "burnt": [name for name, servo in self._arm.servos.items() if servo.burnt],
            "position": {name: s.present_ticks() for name, s in self._arm.servos.items()},
            "goal": {name: s.get(s.goal_position) for name, s in self._arm.servos.items()},
            "ids": {name: servo.id for name, servo in self._arm.servos.items()},
            "requests": self._packets,
        }
        if state != self._state:
            self._state = state
            staged = self._state_file.with_name(self._state_file.name + ".new")
            staged.write_text(json.dumps(state), encoding="utf-8")
            staged.replace(self._state_file)


def host_baudrate(terminal: int) -> int:
    """Return the baud rate that the host has set on a terminal."""
    settings = fcntl.ioctl(terminal, _TCGETS2, bytes(44))
    rate: int = struct.unpack("I", settings[_OUTPUT_SPEED])[0]
    return rate


def motor_calibration(servo: Servo) -> MotorCalibration:
    """Return the calibration that a motor holds."""
    reversed_mode = isinstance(servo, DynamixelServo) and servo.is_reversed
    return MotorCalibration(
        id=servo.id,
        drive_mode=int(reversed_mode),
        homing_offset=servo.homing_offset,
        range_min=servo.get(servo.min_limit),
        range_max=servo.get(servo.max_limit),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve an arm until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m proctor.robots.emulation.pty_bus")
    parser.add_argument("--arm", choices=sorted(ARM_MODELS), default="so_follower")
    parser.add_argument("--world", action="store_true", help="with MuJoCo physics: so_follower")
    parser.add_argument("--link", type=Path, help="symbolic link to the terminal")
    parser.add_argument("--state", type=Path, help="JSON file of torque, positions and counts")
    parser.add_argument("--calibration", type=Path, help="write the motors' calibration here")
    given = parser.parse_args(arguments)
    stop, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    arm = SimulatedCell(virtual=False, physics=given.world).arm(f"sim:{given.arm}")
    if given.calibration is not None:
        calibration = {name: motor_calibration(servo) for name, servo in arm.servos.items()}
        save_calibration(given.calibration, calibration)
    bus = PtyBus(arm, ARM_MODELS[given.arm], link=given.link, state_file=given.state)
    print(bus.path, flush=True)
    try:
        bus.serve(stop)
    finally:
        bus.close()


if __name__ == "__main__":
    main()
