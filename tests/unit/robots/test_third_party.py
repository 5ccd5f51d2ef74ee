"""LeRobot's plug-in packages of third parties, with a stand-in for LeRobot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proctor import plugins
from proctor.cli import main
from proctor.config.builder import build
from proctor.config.sections.devices import OneDeviceConfig
from proctor.errors import DeviceNotConnected, PluginError, RobotError, UsageError
from proctor.robots.base import RealClock, Robot, Unit
from proctor.robots.cameras.configs import camera_configs, make_cameras
from tests.refusals import refuses
from tests.unit.robots.fake_lerobot import (
    CAMERA,
    ROBOT,
    TELEOPERATOR,
    write_lerobot,
    write_plugin,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on Python's path; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    hidden = {name: sys.modules.pop(name) for name in before if name.startswith("lerobot")}
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("lerobot"):
            del sys.modules[name]
    sys.modules.update(hidden)


@pytest.fixture
def installed(folder: Path) -> Path:
    write_lerobot(folder)
    write_plugin(folder, "lerobot-robot-acme", ROBOT)
    write_plugin(folder, "lerobot_teleoperator_acme_pad", TELEOPERATOR)
    write_plugin(folder, "lerobot_camera_acme_eye", CAMERA)
    return folder


def made_robot(**settings: Any) -> Any:
    config = build(OneDeviceConfig, {"robot.type": "acme_arm", "robot.port": "/dev/x"} | settings)
    return plugins.find_robot("acme_arm").make(config.robot)


def test_fields_of_their_config_are_flags(installed: Path) -> None:
    settings = {"robot.speed": "7", "robot.mode": "stiff", "robot.gains.p": "2.5", "robot.id": "a"}
    theirs = made_robot(**settings)._device.config

    assert (theirs.port, theirs.speed, theirs.mode.value) == ("/dev/x", 7, "stiff")
    assert (theirs.gains.p, theirs.id, theirs.cameras) == (2.5, "a", {})


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"robot.speeed": "7"}, "flag.unknown"),
        ({"robot.speed": "fast"}, "flag.invalid-value"),
        ({"robot.speed": "12"}, "flag.invalid-value"),
        ({"robot.cameras": "{front: {type: acme_ey}}"}, "plugin.unknown"),
        ({"robot.cameras": "{front: {type: acme_eye, lense: 1}}"}, "flag.invalid-value"),
    ],
)
def test_wrong_flags_are_refused(installed: Path, settings: dict[str, str], code: str) -> None:
    plugins.find_camera("acme_eye")
    with refuses(UsageError, code):
        made_robot(**settings)


def test_a_field_without_default_is_required(installed: Path) -> None:
    with refuses(UsageError, "flag.missing"):
        build(OneDeviceConfig, {"robot.type": "acme_arm"})


def test_their_cameras_get_their_own_configs(installed: Path) -> None:
    plugins.find_camera("acme_eye")
    cameras = "{front: {type: acme_eye, width: 6, height: 4, fps: 30, lens: tele}}"
    front = made_robot(**{"robot.cameras": cameras})._device.config.cameras["front"]

    assert type(front).__name__ == "AcmeEyeConfig"
    assert (front.width, front.lens) == (6, "tele")


def test_an_adapted_robot_keeps_our_contract(installed: Path) -> None:
    robot: Robot = made_robot()
    robot.connect()

    assert robot.name == "acme_arm"
    assert robot.action_features == {"joint.pos": Unit.OTHER}
    assert robot.observation_features == {"joint.pos": Unit.OTHER, "front": (4, 6, 3)}
    observation = robot.get_observation()
    assert isinstance(observation["joint.pos"], float)
    assert observation["front"].shape == (4, 6, 3)
    assert robot.send_action({"joint.pos": 30.0}) == {"joint.pos": 10.0}
    robot.disconnect()
    robot.disconnect()
    assert not robot.is_connected


def test_only_a_person_can_calibrate(installed: Path) -> None:
    robot = made_robot()
    robot._device.is_calibrated = False

    with refuses(RobotError, "robot.not-calibrated"):
        robot.connect()
    assert robot._device.calibrate_asked is False
    assert not robot.is_connected


def test_stop_switches_their_motors_off(installed: Path) -> None:
    robot = made_robot()
    robot.connect()
    robot.stop()

    assert not robot._device.bus.torque
    assert robot.is_connected


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        (ConnectionError("gone"), DeviceNotConnected, "robot.third-party-lost"),
        (TimeoutError("late"), DeviceNotConnected, "robot.third-party-lost"),
        (ValueError("a bug\nof two lines"), RobotError, "robot.third-party-failed"),
    ],
)
def test_their_errors_become_ours_in_one_line(
    installed: Path, raised: Exception, kind: type[RobotError], code: str
) -> None:
    robot = made_robot()
    robot._device.fails = raised

    with refuses(kind, code) as told:
        robot.get_observation()
    assert "\n" not in str(told.value)
    assert told.value.__cause__ is raised


def test_an_adapted_teleoperator_keeps_our_contract(installed: Path) -> None:
    plugin = plugins.find_teleoperator("acme_pad")
    pad: Any = plugin.make(plugin.config(gain=3.0))
    pad.connect()
    pad.send_feedback({"joint.pos": 1.0})
    pad.set_torque(on=True)

    assert pad.action_features == pad.feedback_features == {"joint.pos": Unit.OTHER}
    assert pad.get_action() == {"joint.pos": 3.0}
    assert (pad._device.feedback, pad._device.torque) == ({"joint.pos": 1.0}, True)
    assert pad.is_actuated


def test_an_adapted_camera_tells_repeats(installed: Path) -> None:
    fields = {"type": "acme_eye", "width": 6, "height": 4, "fps": 30, "lens": "tele"}
    camera: Any = make_cameras(camera_configs({"front": fields}), RealClock())["front"]
    camera.connect()
    first, again = camera.latest(), camera.latest()
    camera._camera.image = camera._camera.image + 1
    newer = camera.latest()

    assert camera.shape == (4, 6, 3)
    assert camera._camera.config.lens == "tele"
    assert (first.number, again.number, newer.number) == (1, 1, 2)
    camera._camera.late = True
    with refuses(DeviceNotConnected, "robot.third-party-lost"):
        camera.latest()


def test_names_are_listed_once_a_package_is_imported(installed: Path) -> None:
    assert "acme_arm" not in plugins.known_plugins("robots")
    assert plugins.is_known("robots", "acme_arm")

    assert "acme_arm" in plugins.known_plugins("robots")
    assert plugins.plugin_module("robots", "acme_arm") == "lerobot_robot_acme"
    assert not plugins.is_known("robots", "acme_leg")


def test_an_unknown_type_is_answered_with_theirs_too(installed: Path) -> None:
    with refuses(UsageError, "plugin.unknown") as refused:
        plugins.find_robot("acme_ar")
    assert "acme_arm" in str(refused.value)


def test_proctor_list_shows_their_types_and_what_fails(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plugin(installed, "lerobot_robot_bad", "1 / 0\n")

    assert main(["list", "robots"]) == 0
    shown = capsys.readouterr().out
    assert "acme_arm" in shown
    assert "lerobot_robot_bad" in shown
    assert "ZeroDivisionError" in shown


def test_help_shows_their_flags(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["teleoperate", "--help", "robot", "acme_arm"]) == 0
    shown = capsys.readouterr().out
    assert "--robot.speed" in shown
    assert "--robot.gains.p" in shown


def test_the_name_of_a_package_is_answered_with_its_types(installed: Path) -> None:
    with refuses(UsageError, "plugin.unknown") as refused:
        plugins.find_robot("acme")
    assert "acme_arm" in str(refused.value)


def test_built_in_types_import_no_package(installed: Path) -> None:
    plugins.find_robot("so101_follower")

    assert "lerobot_robot_acme" not in sys.modules


def test_without_lerobot_the_answer_is_how_to_install_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(folder, "lerobot_robot_acme_arm", ROBOT)
    monkeypatch.setitem(sys.modules, "lerobot", None)

    with refuses(UsageError, "plugin.needs-lerobot"):
        plugins.find_robot("acme_arm")


def test_a_package_that_fails_is_one_line_with_its_place(folder: Path) -> None:
    write_lerobot(folder)
    write_plugin(folder, "lerobot_robot_bad", "import numpy\n1 / 0\n")

    with refuses(PluginError, "plugin.raised") as refused:
        plugins.find_robot("bad")
    assert "lerobot_robot_bad.py:2" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_broken_package_hides_no_other_one(installed: Path) -> None:
    write_plugin(installed, "lerobot_robot_aaa", "1 / 0\n")

    assert plugins.find_robot("acme_arm").summary
    with refuses(UsageError, "plugin.unknown"):
        plugins.find_robot("acme_leg")
