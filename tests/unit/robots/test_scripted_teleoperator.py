"""The script that plays the person, on the simulated SO-101 with a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.so101.kinematics import CHANNELS
from proctor.cli import main
from proctor.errors import DeviceNotConnected, UsageError
from proctor.plugins import find_robot, find_teleoperator
from proctor.robots.base import Robot, Unit
from proctor.robots.emulation.cell import forget_cells
from proctor.robots.teleoperators.scripted import ScriptedConfig, ScriptedTeleoperator
from tests.fake_robots import FakeRobot
from tests.refusals import refuses
from tests.unit.robots.so101_robot import So101Robot

FPS = 30
MOST_S = 20.0


class FixedScene:
    """A scene in which nothing moves."""

    state_names = ("cube.x", "cube.y", "cube.z", "cube.yaw", "bin.x", "bin.y")

    def state(self) -> Any:
        return np.array([0.21, 0.0, 0.0125, 0.0, 0.17, 0.19], np.float32)

    def joint_positions(self) -> Any:
        return np.array([0.0, -55.0, 50.0, 70.0, 0.0, 40.0], np.float32)


@pytest.fixture
def arm() -> Iterator[Robot]:
    plugin = find_robot("so101_follower")
    robot = plugin.make(plugin.config(type="so101_follower", port="sim:virtual"))
    robot.connect()
    yield robot
    robot.disconnect()
    forget_cells()


def scripted(robot: So101Robot | None = None, **fields: Any) -> ScriptedTeleoperator:
    teleoperator = ScriptedTeleoperator(ScriptedConfig(**fields))
    robot = robot or So101Robot()
    robot.connect()
    robot.scene = FixedScene()  # type: ignore[assignment]
    teleoperator.connect()
    teleoperator.attach(robot)
    return teleoperator


@pytest.mark.parametrize(("seed", "noise"), [(3, 0.0), (4, 0.5)])
def test_the_script_picks_the_cube_through_the_emulated_bus(
    arm: Robot, seed: int, noise: float
) -> None:
    assert arm.scene is not None
    teleoperator = find_teleoperator("scripted").make(ScriptedConfig(noise=noise))
    teleoperator.connect()
    teleoperator.attach(arm)
    arm.scene.reset(seed)
    teleoperator.start_episode()
    start = arm.clock.now()
    while not arm.scene.succeeded() and arm.clock.now() < start + MOST_S:
        arm.get_observation()
        arm.send_action(teleoperator.get_action())
        arm.clock.sleep_until(arm.clock.now() + 1 / FPS)

    assert arm.scene.succeeded()


def test_actions_have_the_channels_and_units_of_the_arm(arm: Robot) -> None:
    teleoperator = scripted()

    assert teleoperator.action_features == arm.action_features
    assert list(teleoperator.get_action()) == list(CHANNELS)


def test_noise_differs_by_episode_and_repeats_by_seed() -> None:
    exact, noisy, again = scripted(), scripted(noise=2.0, seed=1), scripted(noise=2.0, seed=1)
    actions = []
    for teleoperator in (noisy, again, noisy):
        teleoperator.start_episode()
        actions.append(tuple(teleoperator.get_action().values()))

    first, same, second = actions
    assert first == same
    assert first != second
    assert np.abs(np.subtract(first, tuple(exact.get_action().values()))).max() < 10


def test_the_script_moves_by_its_step_whatever_the_calibration_says() -> None:
    robot = So101Robot()
    exact = scripted(robot).get_action()
    robot.positions["wrist_roll.pos"] -= 3.0
    shifted = scripted(robot).get_action()
    assert shifted.pop("wrist_roll.pos") == pytest.approx(exact.pop("wrist_roll.pos") - 3)
    assert shifted == pytest.approx(exact)


def test_a_real_robot_is_refused() -> None:
    robot = FakeRobot()
    robot.scene = None  # type: ignore[assignment]

    with refuses(UsageError, "teleop.needs-simulation"):
        ScriptedTeleoperator(ScriptedConfig()).attach(robot)


def test_other_units_are_refused() -> None:
    robot = So101Robot()
    robot.units = dict.fromkeys(robot.units, Unit.SIGNED_PERCENT)

    with refuses(UsageError, "teleop.wrong-units"):
        ScriptedTeleoperator(ScriptedConfig()).attach(robot)


def test_a_script_without_a_robot_has_no_action() -> None:
    teleoperator = ScriptedTeleoperator(ScriptedConfig())
    teleoperator.connect()

    with refuses(DeviceNotConnected, "teleop.not-attached"):
        teleoperator.get_action()
    teleoperator.disconnect()
    assert not teleoperator.is_connected


@pytest.mark.parametrize("fields", [{"noise": -1.0}, {"noise": float("nan")}, {"seed": -1}])
def test_impossible_settings_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ScriptedConfig(**fields)


def test_a_recording_keeps_what_succeeded(tmp_path: Path) -> None:
    """Half a second is too short for a grasp."""
    words = [
        "--robot.type=so101_follower", "--robot.port=sim:virtual", "--teleop.type=scripted",
        f"--dataset.root={tmp_path / 'd'}", "--dataset.repo_id=me/x", "--dataset.num_episodes=1",
        "--dataset.single_task=a", "--dataset.episode_time_s=0.5", "--dataset.reset_time_s=0",
    ]  # fmt: skip
    assert main(["record", *words, "--record.max_attempts=2"]) == 1
    assert not (tmp_path / "d" / "data").exists()
