"""Runs an emulated arm behind a pseudo terminal in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any


class PtyArm:
    """``with PtyArm(folder) as arm``: ``arm.port`` is a serial port to six motors.

    The calibration file in ``folder`` (``<calibration_id>.json``) is that of the motors.
    """

    def __init__(
        self,
        folder: Path,
        *,
        arm: str = "so_follower",
        calibration_id: str = "arm",
        world: bool = False,
    ) -> None:
        self.port = str(folder / f"{arm}.port")
        self._state_file = folder / f"{arm}.state.json"
        command = [sys.executable, "-m", "proctor.robots.emulation.pty_bus", f"--arm={arm}"]
        command += [f"--link={self.port}", f"--state={self._state_file}"]
        command += [f"--calibration={folder / f'{calibration_id}.json'}"]
        command += ["--world"] if world else []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.terminal = self.process.stdout.readline().strip()
        assert self.terminal, "the emulated arm did not start"

    def __enter__(self) -> PtyArm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def order(self, **order: Any) -> None:
        """Send an order, as ``order(burn=3)`` or ``order(fault="drop", motor=3)``."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def state(self) -> dict[str, Any]:
        """Return the newest state: torque, burnt, position, goal, ids, requests."""
        state: dict[str, Any] = json.loads(self._state_file.read_text(encoding="utf-8"))
        return state

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> None:
        """Wait until the state fulfils ``condition``; fail after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not (self._state_file.exists() and condition(self.state())):
            assert time.monotonic() < deadline, f"the arm's state is {self.state()}"
            time.sleep(0.01)

    def stop(self) -> int:
        """End the process with SIGTERM; return its exit code."""
        self.process.terminate()
        code = self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        return code
