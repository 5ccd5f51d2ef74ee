"""Sessions connect devices in order and end with motors off, whatever happens."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from proctor.control.loop.session import ControlSession, EmergencyStop
from proctor.control.terminal.keys import KeyHub
from proctor.errors import BusError, DeviceNotConnected
from tests.fake_robots import FakeRobot, FakeRobotConfig, FakeTeleoperator, FakeTeleoperatorConfig
from tests.refusals import refuses

GONE = BusError("motor 3 does not answer", code="robot.no-reply")


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def robot(events: list[str]) -> FakeRobot:
    return FakeRobot(FakeRobotConfig(disable_torque_on_disconnect=False), events=events)


@pytest.fixture
def teleop(events: list[str]) -> FakeTeleoperator:
    return FakeTeleoperator(FakeTeleoperatorConfig(), events=events)


def test_a_clean_session_keeps_torque_as_the_config_says(
    robot: FakeRobot, teleop: FakeTeleoperator, events: list[str]
) -> None:
    with ControlSession(robot, teleop) as session:
        assert not session.should_end()
        assert robot.is_connected
        assert teleop.is_connected
    assert events == [
        "teleop.attach",
        "teleop.connect",
        "robot.connect",
        "robot.disconnect",
        "teleop.disconnect",
    ]
    assert robot.torque


def test_a_failure_switches_the_motors_off_whatever_the_config_says(
    robot: FakeRobot, teleop: FakeTeleoperator, events: list[str]
) -> None:
    teleop.actuated = True
    with pytest.raises(BusError), ControlSession(robot, teleop):
        raise GONE
    assert events[3:] == [
        "robot.stop",
        "teleop.set_torque",
        "robot.disconnect",
        "teleop.disconnect",
    ]
    assert not robot.torque


def test_failures_while_closing_are_printed_and_hide_nothing(
    robot: FakeRobot, teleop: FakeTeleoperator, capsys: pytest.CaptureFixture[str]
) -> None:
    robot.script.fail("stop", GONE)
    robot.script.fail("disconnect", OSError("port is gone"))
    with pytest.raises(ZeroDivisionError), ControlSession(robot, teleop):
        raise ZeroDivisionError
    assert not teleop.is_connected
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("proctor: error: ") for line in lines] == [str(GONE), "port is gone"]


def test_a_failure_while_closing_is_raised_if_nothing_else_is(
    robot: FakeRobot, teleop: FakeTeleoperator
) -> None:
    robot.script.fail("disconnect", GONE)
    with pytest.raises(BusError), ControlSession(robot, teleop):
        pass
    assert not teleop.is_connected


def test_a_robot_that_does_not_connect_leaves_no_device_open(
    robot: FakeRobot, teleop: FakeTeleoperator, events: list[str]
) -> None:
    robot.script.fail("connect", DeviceNotConnected("no port", code="robot.port-missing"))
    with refuses(DeviceNotConnected, "robot.port-missing"), ControlSession(robot, teleop):
        events.append("never")
    assert events == ["teleop.attach", "teleop.connect", "robot.connect", "teleop.disconnect"]


@pytest.mark.parametrize(
    ("signum", "torque"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)]
)
def test_a_signal_ends_the_loop_between_two_ticks(
    robot: FakeRobot, signum: signal.Signals, torque: bool
) -> None:
    before = signal.getsignal(signum)
    with ControlSession(robot) as session, session.signals.deferred():
        signal.raise_signal(signum)
        assert session.should_end()
    assert robot.torque is torque
    assert not robot.is_connected
    if signum is not signal.SIGHUP:
        assert signal.getsignal(signum) is before
    signal.signal(signum, before)


def test_a_second_signal_interrupts_and_switches_the_motors_off(robot: FakeRobot) -> None:
    def loop() -> None:
        with ControlSession(robot) as session, session.signals.deferred():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert not robot.torque
    assert not robot.is_connected


def test_the_emergency_key_ends_the_loop_with_motors_off(robot: FakeRobot) -> None:
    keys = KeyHub()
    session = ControlSession(robot, keys=keys)
    with refuses(EmergencyStop, "robot.emergency-stop"), session:
        keys.press("space")
        assert not session.should_end()
        keys.press("backspace")
        session.should_end()
    assert not robot.torque


def test_the_emergency_key_interrupts_a_loop_that_hangs(robot: FakeRobot) -> None:
    keys = KeyHub()
    began = time.monotonic()
    with refuses(EmergencyStop, "robot.emergency-stop"), ControlSession(robot, keys=keys):
        keys.press("backspace")
        time.sleep(120)
    assert time.monotonic() - began < 60
    assert not robot.torque
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


HANGS = """
import signal, sys, time
from proctor.control.loop.session import ControlSession
from tests.fake_robots import FakeRobot

robot = FakeRobot()
def hang():
    print("closing", flush=True)
    time.sleep(60)
robot.disconnect = hang
with ControlSession(robot) as session, session.signals.deferred():
    signal.raise_signal(signal.SIGINT)
"""


def test_a_signal_while_closing_hangs_ends_the_process_at_once() -> None:
    root = Path(__file__).parents[3]
    child = subprocess.Popen(
        [sys.executable, "-c", HANGS], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "closing\n"
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=60) == 130
    child.stdout.close()
