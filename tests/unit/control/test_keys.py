"""Keys of a terminal: their bytes, their readers, and the terminal's settings."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from proctor.control.terminal.keys import ControlKey, KeyHub, KeyParser, KeyReader, TerminalKeys

SHOWS_LINES = termios.ICANON | termios.ECHO


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Return both ends of a terminal: the person's and the program's."""
    person, program = pty.openpty()
    yield person, program
    os.close(person)
    os.close(program)


def shows_lines(fd: int) -> bool:
    return termios.tcgetattr(fd)[3] & SHOWS_LINES == SHOWS_LINES


def wait_for(reader: KeyReader, count: int) -> list[str]:
    keys: list[str] = []
    end = time.monotonic() + 60
    while len(keys) < count and time.monotonic() < end:
        keys += reader.poll()
        time.sleep(0.002)
    return keys


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"\x1b[C\x1b[D\x1b[A\x1b[B", ["right", "left", "up", "down"]),
        (b"\x1bOC\x1bOD", ["right", "left"]),
        (b"\x1b[1;5C", ["right"]),
        (b"nRq", ["n", "r", "q"]),
        (b" \t\r\n\x7f\x08", ["space", "tab", "enter", "enter", "backspace", "backspace"]),
        (b"\x1b[3~\x1b[15~x", ["x"]),
        (b"\x1b\x1b[C", ["escape", "right"]),
        (b"\x1bn", []),
        ("é7".encode(), ["7"]),
        (b"\x1b[" + b"1" * 100, []),
    ],
)
def test_bytes_are_keys(data: bytes, keys: list[str]) -> None:
    together, apart = KeyParser(), KeyParser()
    found = [key for byte in data for key in apart.feed(bytes([byte]))]
    if len(data) < 32:
        assert found == keys
    got = [*together.feed(data), *together.flush()]
    assert [key for key in got if key != "1"] == keys


def test_a_lone_escape_is_a_key_after_the_wait() -> None:
    parser = KeyParser()
    assert list(parser.feed(b"\x1b")) == []
    assert parser.is_waiting
    assert list(parser.flush()) == ["escape"]
    assert list(parser.feed(b"\x1b[")) == []
    assert list(parser.flush()) == []


def test_every_reader_gets_every_key_once() -> None:
    hub = KeyHub()
    first, second = hub.reader(), hub.reader()
    hub.press("right")
    assert first.poll() == ["right"]
    hub.press("q")
    assert first.poll() == ["q"]
    assert second.poll() == ["right", "q"]


def test_no_key_has_two_meanings() -> None:
    keys = [key for meaning in ControlKey for key in meaning.value]
    assert len(keys) == len(set(keys))
    assert not {"space", "tab", "enter", "s", "h"} & set(keys)  # of rollout strategies
    assert "n" in ControlKey.END_EPISODE


def test_a_terminal_is_read_and_restored(terminal: tuple[int, int]) -> None:
    person, program = terminal
    assert shows_lines(program)
    with TerminalKeys(program) as keys:
        reader = keys.reader()
        assert not shows_lines(program)
        os.write(person, b"\x1b[Cn")
        assert wait_for(reader, 2) == ["right", "n"]
        os.write(person, b"\x1b")
        assert wait_for(reader, 1) == ["escape"]
        with keys.paused():
            assert shows_lines(program)
        assert not shows_lines(program)
    assert shows_lines(program)


def test_a_failure_inside_restores_the_terminal(terminal: tuple[int, int]) -> None:
    with pytest.raises(ZeroDivisionError), TerminalKeys(terminal[1]):
        raise ZeroDivisionError
    assert shows_lines(terminal[1])


CHILD = """
import os, sys, time
from proctor.control.terminal.keys import TerminalKeys
with TerminalKeys() as keys:
    reader = keys.reader()
    print("ready", keys.is_live, flush=True)
    while True:
        for key in reader.poll():
            print("key", key, flush=True)
            if key == "q":
                sys.exit(3)
        time.sleep(0.005)
"""


SHELL = f"""
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], process_group=0)
os.tcsetpgrp(0, child.pid)
while True:
    status = os.waitpid(child.pid, os.WUNTRACED)[1]
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    print("stopped", sys.stdin.readline(), flush=True)
    os.tcsetpgrp(0, child.pid)
    os.kill(child.pid, signal.SIGCONT)
"""


def test_a_suspended_process_gives_the_terminal_back() -> None:
    shell, person = pty.fork()
    if shell == 0:
        os.execv(sys.executable, [sys.executable, "-c", SHELL])
    try:
        assert b"ready True" in read_until(person, b"ready True")
        wait_until(lambda: not shows_lines(person))
        os.write(person, b"\x1a")  # Ctrl-Z
        wait_until(lambda: shows_lines(person))
        os.write(person, b"fg\n")
        assert b"stopped fg" in read_until(person, b"stopped fg")
        wait_until(lambda: not shows_lines(person))
        os.write(person, b"q")
        assert b"key q" in read_until(person, b"the end of the terminal")
        _, status = os.waitpid(shell, 0)
    except BaseException:
        os.killpg(os.tcgetpgrp(person), signal.SIGKILL)
        os.kill(shell, signal.SIGKILL)
        os.waitpid(shell, 0)
        raise
    finally:
        os.close(person)
    assert os.waitstatus_to_exitcode(status) == 3


def test_without_a_terminal_there_are_no_keys() -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "from proctor.control.terminal.keys import TerminalKeys\n"
            "with TerminalKeys() as keys: print(keys.is_live, keys.reader().poll())",
        ],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )
    assert ran.stdout == "False []\n"


def read_until(fd: int, text: bytes) -> bytes:
    read = b""
    while text not in read:
        try:
            more = os.read(fd, 1000)
        except OSError:
            break
        if not more:
            break
        read += more
    return read


def wait_until(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()
