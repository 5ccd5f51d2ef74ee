"""Commands for devices: teleoperate, calibrate, setup-motors, find-port, find-cameras."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from proctor.cli import main
from proctor.commands.robots import find_port
from proctor.errors import BusError, RobotError
from proctor.robots.base import CameraConfig
from proctor.robots.buses import discovery
from proctor.robots.buses.discovery import PortInfo, list_ports
from proctor.robots.cameras.find import FoundCamera
from tests.fake_robots import FakeCameraConfig, FakeOperator, FakeRobot, FakeTeleoperator
from tests.refusals import refuses

ROBOT = "--robot.type=tests.fake_robots:ROBOT"
TELEOP = "--teleop.type=tests.fake_robots:TELEOPERATOR"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that gives standard input its lines."""
    read, write = os.pipe()
    before = os.dup(0)
    os.dup2(read, 0)

    def give(text: str) -> None:
        os.write(write, text.encode())
        os.close(write)

    yield give
    os.dup2(before, 0)
    for fd in (read, before):
        os.close(fd)


def test_teleoperation_ends_with_one_line_of_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["teleoperate", ROBOT, TELEOP, "--teleop_time_s=2", "--fps=30"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1].startswith("2.0 s at 30.0 Hz; ")
    assert shown.err == ""
    assert not FakeRobot.made[-1].is_connected
    assert not FakeTeleoperator.made[-1].is_connected


def test_lerobots_spelling_runs_and_its_other_flags_are_noted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["lerobot-teleoperate", ROBOT, TELEOP, "--teleop_time_s=0.1"]
    assert main([*words, "--display_data=false", "--display_port=9090"]) == 0
    assert "--display_port changes nothing here" in capsys.readouterr().err
    assert main([*words, "--display_mode=foxglove"]) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["teleoperate", ROBOT],
        ["teleoperate", ROBOT, TELEOP, "--fsp=30"],
        ["teleoperate", "--robot.type=so101_folower", TELEOP],
        ["calibrate"],
        ["calibrate", ROBOT, TELEOP],
        ["setup-motors", TELEOP],
        ["find-port", "--scna"],
        ["find-cameras", "opencvv"],
        ["find-cameras", "--record-time-s=-1"],
    ],
)
def test_a_mistake_is_one_line_and_nothing_starts(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(FakeRobot.made)
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert all(not robot.script.events for robot in FakeRobot.made[before:])


def test_a_device_that_fails_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(self: FakeRobot, operator: Any = None) -> None:
        raise BusError("motor 3 does not answer", code="robot.no-reply")

    monkeypatch.setattr(FakeRobot, "connect", connect)
    assert main(["teleoperate", ROBOT, TELEOP]) == 1
    assert capsys.readouterr().err == "proctor: error: motor 3 does not answer\n"
    assert not FakeTeleoperator.made[-1].is_connected


def test_calibration_and_set_up_ask_the_person(
    answers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", ROBOT]) == 0
    assert FakeRobot.made[-1].script.events == ["robot.calibrate"]
    answers("\n\n\n")
    assert main(["setup-motors", ROBOT]) == 0
    assert capsys.readouterr().out.count("connect only the motor") == 3


def test_a_set_up_without_a_person_ends(answers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answers("\n")
    assert main(["setup-motors", ROBOT]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_keyboard_teleoperator_that_needs_no_calibration_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["calibrate", TELEOP]) == 0
    assert "needs no calibration" in capsys.readouterr().out


# find-port

PORTS = [PortInfo("/dev/ttyACM0", "USB Single Serial"), PortInfo("/dev/ttyACM1", "")]


def test_the_port_that_is_gone_is_found() -> None:
    operator = FakeOperator()
    assert find_port.find_unplugged(PORTS, lambda: PORTS[1:], operator) == "/dev/ttyACM0"
    assert len(operator.asked) == 1


@pytest.mark.parametrize("after", [PORTS, []])
def test_no_port_or_two_ports_that_are_gone_are_refused(after: Sequence[PortInfo]) -> None:
    with refuses(RobotError, "robot.port-unclear"):
        find_port.find_unplugged(PORTS, lambda: after, FakeOperator())


def test_ports_have_their_stable_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools = pytest.importorskip("serial.tools.list_ports")
    device = tmp_path / "ttyACM0"
    device.touch()
    links = tmp_path / "by-id"
    links.mkdir()
    (links / "usb-arm").symlink_to(device)
    port = SimpleNamespace(device=str(device), description="n/a")
    monkeypatch.setattr(tools, "comports", lambda: [port])
    assert list_ports(links) == [PortInfo(str(device), "", str(links / "usb-arm"))]


def test_a_script_gets_the_list_without_a_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answers: Any
) -> None:
    monkeypatch.setattr(discovery, "list_ports", lambda: PORTS)
    assert main(["find-port"]) == 0
    assert capsys.readouterr().out == "/dev/ttyACM0  USB Single Serial\n/dev/ttyACM1\n"
    monkeypatch.setattr(discovery, "list_ports", list)
    assert main(["find-port"]) == 1


def test_a_missing_port_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("serial")
    assert main(["find-port", "--port=/dev/ttyNONE"]) == 1
    assert "/dev/ttyNONE" in capsys.readouterr().err


# find-cameras


def test_every_camera_is_listed_and_its_image_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cv2 = pytest.importorskip("cv2")
    good = FoundCamera(
        FakeCameraConfig(type="tests.fake_robots:CAMERA"),
        "/dev/video0",
        "Webcam",
        ("640x480 30 fps",),
    )
    bad = FoundCamera(CameraConfig(), "/dev/video1", "", problem="permission denied")
    monkeypatch.setattr("proctor.robots.cameras.find.find_cameras", lambda kind: [good, bad])
    words = ["find-cameras", "opencv", f"--output-dir={tmp_path}", "--record-time-s=0"]
    assert main(words) == 1
    shown = capsys.readouterr()
    assert "640x480 30 fps" in shown.out
    assert "permission denied" in shown.err
    (file,) = tmp_path.iterdir()
    assert file.name == "tests.fake_robots:CAMERA__dev_video0.png"
    assert np.array_equal(cv2.imread(str(file))[0, 0], [1, 1, 1])


def test_no_camera_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("proctor.robots.cameras.find.find_cameras", lambda kind: [])
    assert main(["find-cameras"]) == 1
    assert capsys.readouterr().out == "no cameras found\n"
