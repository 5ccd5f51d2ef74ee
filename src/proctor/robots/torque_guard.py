"""A guard process that switches motors off when the process that drives them ends or stops.

TorqueGuard   used by the driver: start the process, release it after a clean disconnect
DriverWatch   used by the guard: whether the driver is still there
main          the guard process: ``python -m proctor.robots.torque_guard``

An arm starts its guard before its torque goes on. Driver and guard watch each other through two
pipes. A thread of the driver sends a heartbeat every 50 ms, and the guard echoes it.

The guard opens the port and switches every motor off when the pipe closes without a goodbye, the
driver is no longer its parent, or its heartbeats stop. A pipe that a forked worker still holds open
is no obstacle. The guard has its own session and ignores signals, so Ctrl-C, a closed terminal and
``kill`` reach the driver only. When the guard is gone, the driver's thread switches the motors off
itself, and the arm's next operation raises the error.

The process imports the packet formats, the standard library and pyserial, nothing heavy, and
starts in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from proctor.robots.buses.dynamixel_packets import DynamixelCodec
from proctor.robots.buses.feetech_packets import FeetechCodec
from proctor.robots.buses.packets import PacketCodec, Request
from proctor.robots.buses.ports import PORT_ERRORS

if TYPE_CHECKING:
    from proctor.robots.base import GuardTarget

_BEAT, _GOODBYE = b"+", b"-"
_READY = b"ready\n"
_START_S = 60.0
"""For the start of a Python process on a busy computer."""
_BEAT_S, _LOOK_S = 0.05, 0.02
_SILENT_S, _BUSY_S = 0.2, 1.0
"""Longest silence of a driver whose threads sleep or are stopped, and of one that computes: an
import or a garbage collection delays the thread of the heartbeats too."""
_GUARD_SILENT_S = 1.0
"""Longest silence of a guard that runs; the end of one closes its pipe at once."""
_RETRY_S = 0.1
_GIVE_UP_S = 5.0
"""An adapter that is plugged in again within this time still has its motors switched off."""
_LEAST_TRIES = 5
"""Also after that time: a busy computer may need it for one."""
_REPLY_S = 0.02
_BROADCASTS = 2
_EXIT_SILENT = 3
"""Exit code of a guard that switched off the motors of a silent driver."""
_PROTOCOLS: dict[str, tuple[PacketCodec, int]] = {
    "feetech": (FeetechCodec(), 40),
    "dynamixel": (DynamixelCodec(), 64),
}
"""Packets, and the address of Torque_Enable: one byte on every model of the protocol."""


class TorqueGuard:
    """The driver's side of a guard process."""

    def __init__(self, targets: Sequence[GuardTarget]) -> None:
        """Start the guard and wait until it watches."""
        self.loss = ""
        """Why the guard no longer watches; the motors are being switched off then."""
        self._targets = [asdict(target) for target in targets]
        self._process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", "proctor.robots.torque_guard", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pipe: IO[bytes] = self._process.stdin
        self._echoes: IO[bytes] = self._process.stdout
        try:
            self._pipe.write(json.dumps(self._targets).encode() + b"\n")
            self._pipe.flush()
            self._wait_until_ready()
        except OSError as bad:
            self._fail(str(bad))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="torque guard", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid

    def _wait_until_ready(self) -> None:
        readable, _, _ = select.select([self._echoes], [], [], _START_S)
        if not readable or self._echoes.readline() != _READY:
            self._fail("it does not start")
        for pipe in (self._pipe, self._echoes):
            os.set_blocking(pipe.fileno(), False)

    def _fail(self, reason: str) -> None:
        from proctor.errors import RobotError

        self._process.kill()
        self._process.wait()
        raise RobotError(f"the torque guard failed: {reason}", code="robot.guard-failed")

    def _watch(self) -> None:
        """Send heartbeats; when the guard is gone, switch the motors off."""
        heard_at = looked_at = time.monotonic()
        while not self._ending.wait(_BEAT_S):
            now = time.monotonic()
            try:
                if self._exchange_beats() or now - looked_at > _SILENT_S:  # late itself
                    heard_at = now
            except OSError:  # also EOF
                break
            looked_at = now
            if now - heard_at > _GUARD_SILENT_S:
                break
        else:
            return
        self._process.kill()
        was_silent = self._process.wait() == _EXIT_SILENT
        self.loss = (
            "this process did not answer, and the torque guard switched the motors off"
            if was_silent
            else "the torque guard is gone, so the motors are switched off"
        )
        for target in self._targets:
            switch_off(**target)

    def _exchange_beats(self) -> bool:
        """Send a heartbeat; return whether an echo came.

        Raises:
            OSError: the guard is gone.
        """
        try:
            os.write(self._pipe.fileno(), _BEAT)
            if not os.read(self._echoes.fileno(), 64):
                raise BrokenPipeError
        except BlockingIOError:
            return False
        return True

    def settle(self) -> None:
        """After a loss, wait until the motors are off."""
        if self.loss:
            self._thread.join()

    def release(self) -> None:
        """Let the guard end without touching the motors."""
        self._stop_watching()
        with contextlib.suppress(OSError):  # the guard is gone
            os.write(self._pipe.fileno(), _GOODBYE)
        self._close_pipe()
        self._process.wait()
        self._echoes.close()

    def trigger(self) -> None:
        """Let the guard switch the motors off now, in the background; close the port first."""
        self._stop_watching()
        self._close_pipe()

    def _stop_watching(self) -> None:
        self._ending.set()
        self._thread.join()

    def _close_pipe(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.close()


class DriverWatch:
    """What the guard knows of the driver; times are seconds of any clock."""

    def __init__(self, driver: int, now: float) -> None:
        self._driver = driver
        self._heard_at = self._looked_at = now

    def note_beat(self, now: float) -> None:
        """Note a heartbeat."""
        self._heard_at = now

    def is_silent(self, now: float) -> bool:
        """Return whether the driver has been silent for too long."""
        if now - self._looked_at > _SILENT_S:  # the guard was late itself: wait anew
            self._heard_at = now
        self._looked_at = now
        silence_s = now - self._heard_at
        return silence_s > _BUSY_S or (silence_s > _SILENT_S and not is_busy(self._driver))


def is_busy(process: int) -> bool:
    """Return whether a thread of a process computes or waits for a disk; True if unknown."""
    states = []
    try:
        for thread in Path(f"/proc/{process}/task").iterdir():
            status = (thread / "stat").read_text(encoding="ascii", errors="replace")
            states.append(status.rpartition(")")[2].split()[0])
    except OSError:  # it has ended, which its pipe says, or the system has no /proc
        return True
    return any(state in "RD" for state in states)


def main(arguments: Sequence[str]) -> int:
    """Watch the driver whose process id is the first argument; return the exit code."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGTSTP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    targets = json.loads(io.FileIO(0, closefd=False).readline() or b"[]")  # no byte of a heartbeat
    import serial  # noqa: F401  slow to import: before it is urgent

    os.write(sys.stdout.fileno(), _READY)
    ending = _wait_for_end(int(arguments[0]))
    if not ending:
        return 0
    left = [name for target in targets for name in switch_off(**target)]
    with contextlib.suppress(OSError):  # the terminal may be gone
        result = "all motors are off"
        if left:
            silent = ", ".join(left)
            result = f"no answer from {silent}: they may still hold; cut the power of the arm"
        print(f"torque guard: the driver {ending}; {result}", file=sys.stderr)
    return 1 if left else _EXIT_SILENT


def _wait_for_end(driver: int) -> str:
    """Echo heartbeats until the driver ends; return what it did, or "" after a goodbye."""
    watch = DriverWatch(driver, time.monotonic())
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
        now = time.monotonic()
        received = os.read(sys.stdin.fileno(), 4096) if readable else b""
        if _GOODBYE in received:
            return ""
        if (readable and not received) or os.getppid() != driver:
            return "ended without disconnecting"
        if received:
            watch.note_beat(now)
            with contextlib.suppress(OSError):  # the driver is ending
                os.write(sys.stdout.fileno(), _BEAT)
        if watch.is_silent(now):
            return "stopped answering"


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
            time.sleep(_RETRY_S)
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
