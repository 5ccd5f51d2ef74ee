"""The operator at a terminal, a pipe, or nowhere."""

from __future__ import annotations

import io
import os
import pty
import select
import termios
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from proctor.control.terminal.keys import KeyHub, TerminalKeys
from proctor.control.terminal.operator import TerminalOperator
from proctor.errors import RobotError
from tests.refusals import refuses


class Screen(io.StringIO):
    """An output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)


def test_answers_come_line_by_line_from_a_pipe(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"c\n\nnext\n")
    operator = TerminalOperator(input_fd=pipe[0], output=io.StringIO())
    assert operator.ask("calibrate?") == "c"
    assert operator.pressed_enter()
    assert operator.ask("name?") == "next"
    assert not operator.pressed_enter()
    os.close(pipe[1])


def test_a_closed_input_is_refused_and_not_waited_for(pipe: tuple[int, int]) -> None:
    os.close(pipe[1])
    operator = TerminalOperator(input_fd=pipe[0], output=io.StringIO())
    with refuses(RobotError, "robot.no-operator"):
        operator.ask("ready?")
    with refuses(RobotError, "robot.no-operator"):
        operator.pressed_enter()


def test_a_table_replaces_the_table_before_unless_a_line_came_between() -> None:
    screen = Screen()
    operator = TerminalOperator(output=screen)
    operator.show_table(("motor", "min"), [("elbow", "12")])
    assert screen.getvalue() == "motor  min\nelbow   12\n"
    operator.show_table(("motor", "min"), [("elbow", "9")])
    assert screen.getvalue().count("\x1b[2A\x1b[J") == 1
    operator.tell("done\x1b[2J")
    operator.show_table(("motor", "min"), [("elbow", "8")])
    assert screen.getvalue().count("\x1b[2A\x1b[J") == 1
    assert "\x1b[2J" not in screen.getvalue()


def test_tables_are_not_shown_in_a_file() -> None:
    file = io.StringIO()
    TerminalOperator(output=file).show_table(("motor",), [("elbow",)])
    assert file.getvalue() == ""


def test_enter_is_a_key_where_keys_are_read_and_lines_pause_them() -> None:
    person, program = pty.openpty()
    with TerminalKeys(program) as keys:
        operator = TerminalOperator(keys, input_fd=program, output=io.StringIO())
        assert not operator.pressed_enter()
        keys.press("enter")
        assert operator.pressed_enter()
        answer: list[str] = []
        asking = threading.Thread(target=lambda: answer.append(operator.ask("name?")))
        asking.start()
        while not termios.tcgetattr(program)[3] & termios.ICANON:
            time.sleep(0.002)
        os.write(person, b"robin\n")
        asking.join()
        assert answer == ["robin"]
        assert not termios.tcgetattr(program)[3] & termios.ICANON
    os.close(person)
    os.close(program)


@pytest.mark.timeout(20)
def test_keys_end_although_a_line_was_typed_while_they_were_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    selected, select_now = threading.Event(), select.select

    def late(files: Any, writing: Any, failing: Any, seconds: float) -> Any:
        found = select_now(files, writing, failing, seconds)
        if found[0] and seconds > 0:
            selected.set()
            time.sleep(0.3)  # the line is read meanwhile
        return found

    person, program = pty.openpty()
    with TerminalKeys(program) as keys:
        monkeypatch.setattr("proctor.control.terminal.keys.select", SimpleNamespace(select=late))
        operator = TerminalOperator(keys, input_fd=program, output=io.StringIO())
        while not selected.is_set():  # until a line is typed while keys are awaited
            time.sleep(0.15)
            asking = threading.Thread(target=operator.ask, args=("name?",))
            asking.start()
            while not termios.tcgetattr(program)[3] & termios.ICANON:
                time.sleep(0.002)
            os.write(person, b"robin\n")
            asking.join()
    os.close(person)
    os.close(program)


def test_without_keys_a_hub_presses_nothing(pipe: tuple[int, int]) -> None:
    operator = TerminalOperator(KeyHub(), input_fd=pipe[0], output=io.StringIO())
    assert not operator.pressed_enter()
    os.close(pipe[1])
