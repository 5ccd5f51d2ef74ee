"""``proctor teleoperate`` on the simulated arm as a process: keys, signals, no terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("mujoco")

WORDS = [
    sys.executable, "-m", "proctor.cli", "teleoperate", "--robot.type=so101_follower",
    "--robot.port=sim", "--teleop.type=so101_leader", "--teleop.port=sim",
]  # fmt: skip
DRIVES = b"drives so_follower"


def in_terminal(key: bytes) -> tuple[int, str]:
    """Run the command in a terminal, press a key once it drives; return exit code and output."""
    child, person = pty.fork()
    if child == 0:
        os.execv(WORDS[0], WORDS)
    shown, pressed = b"", False
    while True:
        try:
            read = os.read(person, 4096)
        except OSError:
            break
        shown += read
        if DRIVES in shown and not pressed:
            pressed = True
            time.sleep(0.2)
            os.write(person, key)
        if not read:
            break
    _, status = os.waitpid(child, 0)
    os.close(person)
    return os.waitstatus_to_exitcode(status), shown.decode()


@pytest.mark.parametrize(
    ("key", "code", "last"),
    [
        (b"\x03", 130, " ticks"),
        (b"\x1b", 0, " ticks"),
        (b"q", 0, " ticks"),
        (b"\x7f", 1, "emergency stop"),
    ],
    ids=["ctrl-c", "escape", "q", "backspace"],
)
def test_keys_end_it_in_order(key: bytes, code: int, last: str) -> None:
    ended, shown = in_terminal(key)
    assert ended == code
    assert last in shown.splitlines()[-1]
    assert "Traceback" not in shown


def test_without_a_terminal_a_signal_ends_it_and_the_result_is_printed() -> None:
    child = subprocess.Popen(
        WORDS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline().startswith("so_leader drives so_follower")
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "0 replies lost" in out
    assert err == ""
