"""A guard process that switches motors off when the process that drives them is killed.

TorqueGuard   used by the driver: start the process, release it after a clean disconnect
main          the guard process: ``python -m proctor.robots.torque_guard``

An arm starts its guard before its torque goes on. The guard waits at a pipe. "goodbye" ends it.
When the pipe closes without a goodbye, or the driver is no longer its parent, it opens the port
and switches every motor off. A pipe that a forked worker still holds open is no obstacle: the
guard also watches its parent. It has its own session and ignores signals, so Ctrl-C, a closed
terminal and ``kill`` reach the driver only.

The process imports the packet formats, the standard library and pyserial, nothing heavy, and
starts in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from proctor.robots.buses.dynamixel_packets import DynamixelCodec
from proctor.robots.buses.feetech_packets import FeetechCodec
from proctor.robots.buses.packets import PacketCodec, Request
from proctor.robots.buses.ports import PORT_ERRORS

if TYPE_CHECKING:
    from proctor.robots.base import GuardTarget

_GOODBYE = b"goodbye\n"
_READY = b"ready\n"
_START_S = 60.0
"""For the start of a Python process on a busy computer."""
_WATCH_S = 0.1
_GIVE_UP_S = 5.0
"""An adapter that is plugged in again within this time still has its motors switched off."""
_LEAST_TRIES = 5
"""Also after that time: a busy computer may need it for one."""
_REPLY_S = 0.02
_BROADCASTS = 2
_PROTOCOLS: dict[str, tuple[PacketCodec, int]] = {
    "feetech": (FeetechCodec(), 40),
    "dynamixel": (DynamixelCodec(), 64),
}
"""Packets, and the address of Torque_Enable: one byte on every model of the protocol."""


class TorqueGuard:
    """The driver's side of a guard process."""

    def __init__(self, targets: Sequence[GuardTarget]) -> None:
        """Start the guard and wait until it watches.

        Raises:
            RobotError: it does not start.
        """
        message = json.dumps([asdict(target) for target in targets]).encode()
        self._process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", "proctor.robots.torque_guard", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._pipe.write(message + b"\n")
            self._pipe.flush()
            self._wait_until_ready()
        except OSError as bad:
            self._fail(str(bad))

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _wait_until_ready(self) -> None:
        answers = self._process.stdout
        assert answers is not None
        with answers:
            readable, _, _ = select.select([answers], [], [], _START_S)
            if not readable or answers.readline() != _READY:
                self._fail("it does not start")

    def _fail(self, reason: str) -> None:
        from proctor.errors import RobotError

        self._process.kill()
        self._process.wait()
        raise RobotError(f"the torque guard failed: {reason}", code="robot.guard-failed")

    def release(self) -> None:
        """Let the guard end without touching the motors."""
        with contextlib.suppress(OSError):  # the guard is gone
            self._pipe.write(_GOODBYE)
            self._pipe.flush()
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._process.wait()

    def trigger(self) -> None:
        """Let the guard switch the motors off now, in the background; close the port first."""
        with contextlib.suppress(OSError):
            self._pipe.close()


def main(arguments: Sequence[str]) -> int:
    """Watch the driver whose process id is the first argument; return the exit code."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGTSTP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    targets = json.loads(sys.stdin.buffer.readline() or b"[]")
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    sys.stdout.close()
    import serial  # noqa: F401  slow to import: before it is urgent

    if _said_goodbye(int(arguments[0])):
        return 0
    left = [name for target in targets for name in switch_off(**target)]
    with contextlib.suppress(OSError):  # the terminal may be gone
        result = "all motors are off"
        if left:
            silent = ", ".join(left)
            result = f"no answer from {silent}: they may still hold; cut the power of the arm"
        print(f"torque guard: the driver ended without disconnecting; {result}", file=sys.stderr)
    return 1 if left else 0


def _said_goodbye(driver: int) -> bool:
    """Wait for the end of the driver; return whether it was a clean one."""
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], _WATCH_S)
        if readable:
            return os.read(sys.stdin.fileno(), 64).startswith(_GOODBYE)
        if os.getppid() != driver:
            return False


def switch_off(port: str, protocol: str, baudrate: int, motor_ids: Sequence[int]) -> list[str]:
    """Switch torque off on every motor of a port; return those that never answered.

    All motors are addressed at once first. Then each is asked until it confirms: a packet that
    the driver sent in part when it was killed may have swallowed the first request.
    """
    codec, address = _PROTOCOLS[protocol]
    all_off = codec.sync_write(address, 1, [(motor, b"\x00") for motor in motor_ids])
    waiting = list(motor_ids)
    give_up_at = time.monotonic() + _GIVE_UP_S
    tries = 0
    while waiting and (tries < _LEAST_TRIES or time.monotonic() < give_up_at):
        tries += 1
        try:
            with open_port(port, baudrate) as line:
                for _ in range(_BROADCASTS):
                    line.write(all_off)
                    line.flush()
                offs = {motor: codec.write(motor, address, b"\x00") for motor in waiting}
                waiting = [motor for motor in waiting if not _confirmed(line, codec, offs[motor])]
        except PORT_ERRORS:
            time.sleep(_WATCH_S)
    return [f"motor {motor} at {port}" for motor in waiting]


def open_port(port: str, baudrate: int) -> Any:
    """Open a port, if possible with a lock: the next driver of the port then waits.

    A lock that a forked worker of the killed driver still holds is no obstacle.
    """
    import serial

    make = partial(serial.Serial, port, baudrate, timeout=_REPLY_S, write_timeout=1)
    try:
        return make(exclusive=True)
    except PORT_ERRORS:
        return make()


def _confirmed(line: Any, codec: PacketCodec, request: Request) -> bool:
    """Send a write to one motor; return whether it answered, with an alert or without."""
    line.reset_input_buffer()
    line.write(request.packet)
    line.flush()
    replies = codec.scan(line.read(request.reply_size), request).replies
    return any(reply.id in request.ids and not reply.data for reply in replies)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
