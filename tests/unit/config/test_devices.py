"""Configs with the sections ``--robot.*`` and ``--teleop.*``."""

from __future__ import annotations

from pathlib import Path

import pytest

from proctor.commands.shared.arguments import choose_config
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.help import help_text
from proctor.config.sections.devices import OneDeviceConfig, RobotCommandConfig, TeleoperateConfig
from proctor.errors import UsageError
from tests.fake_robots import FakeRobotConfig, FakeTeleoperatorConfig
from tests.refusals import refuses

ROBOT = {"robot.type": "tests.fake_robots:ROBOT"}
TELEOP = {"teleop.type": "tests.fake_robots:TELEOPERATOR"}


def test_sections_have_the_flags_of_the_chosen_devices() -> None:
    config = build(
        TeleoperateConfig,
        {**ROBOT, **TELEOP, "robot.n_cameras": "2", "teleop.amplitude": "5", "fps": "30"},
    )
    assert isinstance(config.robot, FakeRobotConfig)
    assert isinstance(config.teleop, FakeTeleoperatorConfig)
    assert (config.robot.n_cameras, config.teleop.amplitude, config.fps) == (2, 5.0, 30)


def test_the_teleoperator_of_a_robot_command_may_be_absent() -> None:
    assert build(RobotCommandConfig, ROBOT).teleop is None
    assert build(RobotCommandConfig, {**ROBOT, **TELEOP}).teleop is not None


def test_calibration_is_of_one_device() -> None:
    assert build(OneDeviceConfig, ROBOT).teleop is None
    assert build(OneDeviceConfig, TELEOP).robot is None
    with refuses(UsageError, "flag.missing"):
        build(OneDeviceConfig, {})
    with refuses(UsageError, "flag.conflict"):
        build(OneDeviceConfig, {**ROBOT, **TELEOP})


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"robot.n_camera": "1"}, "flag.unknown"),
        ({"robot.n_cameras": "two"}, "flag.invalid-value"),
        ({"robot.type": "so101_folower"}, "plugin.unknown"),
        ({"robot.type": "tests.fake_robots:TELEOPERATOR"}, "plugin.wrong-type"),
        ({"teleop.type": ""}, "flag.missing"),
        ({"fps": "0"}, "flag.out-of-range"),
        ({"teleop_time_s": "-1"}, "flag.out-of-range"),
        ({"display_mode": "foxglove"}, "flag.unsupported"),
        ({"display_port": "0"}, "flag.out-of-range"),
        ({"live_port": "70000"}, "flag.out-of-range"),
    ],
)
def test_bad_values_are_refused(settings: dict[str, str], code: str) -> None:
    with refuses(UsageError, code):
        build(TeleoperateConfig, {**ROBOT, **TELEOP, **settings})


def test_help_of_a_device_lists_its_flags() -> None:
    text = help_text(TeleoperateConfig, "teleoperate", ["robot", "tests.fake_robots:ROBOT"], {})
    assert "--robot.n_cameras=INT" in text
    assert "--robot.calibration_dir=PATH" in text


def test_words_choose_the_config_that_has_their_section(tmp_path: Path) -> None:
    both = [EvalConfig, RobotCommandConfig]
    assert choose_config(both, ["--policy.type=act", "--help", "robots"]) is EvalConfig
    assert choose_config(both, ["--robot.type=x"]) is RobotCommandConfig
    assert choose_config(both, ["--help", "robot"]) is RobotCommandConfig
    file = tmp_path / "settings.yaml"
    file.write_text("robot: {type: x}\n")
    assert choose_config(both, ["--config_path", str(file)]) is RobotCommandConfig
    assert choose_config(both, [f"--config_path={file}"]) is RobotCommandConfig
    assert choose_config([EvalConfig], ["--robot.type=x"]) is EvalConfig
