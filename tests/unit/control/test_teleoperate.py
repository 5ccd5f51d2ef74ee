"""The loop in which a teleoperator drives a robot."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import pytest

from proctor.control.loop.session import ControlSession, EmergencyStop
from proctor.control.loop.units import attach_teleoperator
from proctor.control.teleoperate import teleoperate
from proctor.control.terminal.keys import KeyHub
from proctor.errors import BusError, UsageError
from proctor.robots.base import Unit
from tests.fake_robots import FakeRobot, FakeTeleoperator, VirtualClock
from tests.refusals import refuses


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_each_tick_observes_asks_and_sends(clock: VirtualClock) -> None:
    events: list[str] = []
    robot, teleop = FakeRobot(clock=clock, events=events), FakeTeleoperator(events=events)
    with ControlSession(robot, teleop) as session:
        began = len(events)
        result = teleoperate(session, fps=10, seconds=1.0)
    tick = ["robot.get_observation", "teleop.get_action", "robot.send_action"]
    assert events[began:] == ["teleop.start_episode", *tick * 10, *events[-2:]]
    assert [sent["shoulder.pos"] for sent in robot.sent] == pytest.approx(
        [teleop.wish(number / 10)["shoulder.pos"] for number in range(10)]
    )
    assert result.seconds == pytest.approx(1.0)
    assert result.rate_hz == pytest.approx(10)
    assert result.jitter.overruns == 0
    assert "10 requests, 0 replies lost" in result.text()
    assert "\n" not in result.text()


@pytest.mark.parametrize("key", ["escape", "q"])
def test_a_key_ends_the_loop(clock: VirtualClock, key: str) -> None:
    keys = KeyHub()
    clock.on_time = lambda now: keys.press(key) if now >= 0.5 else None
    robot = FakeRobot(clock=clock)
    with ControlSession(robot, FakeTeleoperator(), keys=keys) as session:
        assert teleoperate(session, fps=10, seconds=None).seconds == pytest.approx(0.5)
    assert not robot.torque


def test_a_signal_ends_the_loop_after_a_whole_tick(clock: VirtualClock) -> None:
    clock.on_time = lambda now: signal.raise_signal(signal.SIGINT) if now >= 0.5 else None
    robot = FakeRobot(clock=clock)
    with ControlSession(robot, FakeTeleoperator()) as session, session.signals.deferred():
        teleoperate(session, fps=10, seconds=None)
    assert robot.script.counts["get_observation"] == robot.script.counts["send_action"]
    assert session.signals.received is signal.SIGINT


def test_the_emergency_key_stops_within_a_tick(clock: VirtualClock) -> None:
    keys = KeyHub()
    clock.on_time = lambda now: keys.press("backspace") if now >= 0.5 else None
    robot = FakeRobot(clock=clock)
    session = ControlSession(robot, FakeTeleoperator(), keys=keys)
    with refuses(EmergencyStop, "robot.emergency-stop"), session:
        teleoperate(session, fps=10, seconds=None)
    assert len(robot.sent) == 6
    assert not robot.torque


def test_a_lost_bus_ends_with_the_motors_off(clock: VirtualClock) -> None:
    robot, teleop = FakeRobot(clock=clock), FakeTeleoperator()
    robot.script.fail("send_action", BusError("no reply", code="robot.no-reply"), at=3)
    with refuses(BusError, "robot.no-reply"), ControlSession(robot, teleop) as session:
        teleoperate(session, fps=10, seconds=None)
    assert robot.script.counts["stop"] == 1
    assert not teleop.is_connected


class OtherUnits(FakeTeleoperator):
    """A teleoperator in percent of the range."""

    @property
    def action_features(self) -> Mapping[str, Unit]:
        return dict.fromkeys(super().action_features, Unit.SIGNED_PERCENT)


class NoGripper(FakeTeleoperator):
    """A teleoperator without a gripper."""

    @property
    def action_features(self) -> Mapping[str, Unit]:
        return {"shoulder.pos": Unit.DEGREES, "elbow.pos": Unit.DEGREES}


def test_other_units_and_missing_channels_are_refused() -> None:
    attach_teleoperator(FakeTeleoperator(), FakeRobot())
    with refuses(UsageError, "robot.unit-mismatch"):
        attach_teleoperator(OtherUnits(), FakeRobot())
    with refuses(UsageError, "robot.channel-mismatch"):
        attach_teleoperator(NoGripper(), FakeRobot())
