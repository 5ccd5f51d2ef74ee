"""The live page of recordings and teleoperation is fed by the loop, and costs it little."""

from __future__ import annotations

import json
import time
import urllib.request

import pytest

from proctor.control.robot_frames import ControlStep
from proctor.control.terminal.live_page import LiveAddress, LivePage, live_page
from proctor.report.server.live_robot import LiveRobot
from tests.unit.control.trial_robots import ReachRobot


def test_a_tick_of_a_recording_reaches_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    robot = ReachRobot()
    with live_page(robot, "Recording", 30, LiveAddress("127.0.0.1", 0)) as page:
        address = capsys.readouterr().err.split()[-1]
        page.say(headline="episode 3", planned=50)
        tick = ControlStep(robot.get_observation(), {"arm.pos": 5.0}, {"arm.pos": 4.0}, 0.1)
        page.on_tick("recording", 0.1, tick)
        with urllib.request.urlopen(f"{address}state") as answer:
            state = json.loads(answer.read())
    assert (state["phase"], state["headline"], state["planned"]) == ("recording", "episode 3", 50)
    assert state["sent"] == [4.0, None]


def test_without_a_port_nothing_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    robot = ReachRobot()
    with live_page(robot, "Recording", 30, None) as page:
        page.show(robot.get_observation())
        page.say(phase="recording")
    assert capsys.readouterr().err == ""


def test_limits_are_read_once_the_robot_is_connected() -> None:
    robot = ReachRobot()
    live = LiveRobot("Trials", [], ["front"], 30)
    LivePage(robot, live).show(robot.get_observation())
    assert [(one.low, one.high) for one in live.channels] == [(-90.0, 90.0), (None, None)]


@pytest.mark.alone
def test_showing_a_step_takes_microseconds() -> None:
    robot = ReachRobot()
    page = LivePage(robot, LiveRobot("Trials", [], ["front"], 30))
    seen = robot.get_observation()
    page.show(seen)
    best = min(_seconds(page, seen) for _ in range(20))
    assert best < 200e-6


def _seconds(page: LivePage, seen: dict[str, object]) -> float:
    start = time.perf_counter()
    page.show(seen)
    return time.perf_counter() - start


def test_saved_episodes_are_counted() -> None:
    robot = ReachRobot()
    live = LiveRobot("Recording", [], [], 30)
    LivePage(robot, live).on_episodes(4)
    assert live.state()["done"] == 4
