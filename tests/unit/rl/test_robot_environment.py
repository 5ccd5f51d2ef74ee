"""A robot as an environment of online learning, on a virtual clock."""

import numpy as np
import pytest

from proctor.config.sections.env_processors import KinematicsProcessing
from proctor.control.loop.session import ControlSession
from proctor.control.robot_features import robot_interface
from proctor.errors import UsageError
from proctor.features import STATE
from proctor.rl.environment.robot_environment import (
    HandDriver,
    JointDriver,
    RobotEnvSettings,
    RobotOnlineEnv,
)
from proctor.robots.base import Action
from proctor.robots.teleoperators.end_effector import SO101_UNITS
from tests.fake_robots import UNITS, FakeRobot, FakeRobotConfig

_POSE = dict.fromkeys(UNITS, 5.0)


def _env(robot: FakeRobot, **settings: object) -> RobotOnlineEnv:
    session = ControlSession(robot)
    session.__enter__()
    driver = JointDriver(robot, robot_interface(robot, 10))
    made = RobotEnvSettings(fps=10, max_steps=3, **settings)  # type: ignore[arg-type]
    return RobotOnlineEnv(session, driver, [STATE], made)


def test_an_action_is_sent_and_observed_a_period_later() -> None:
    robot = FakeRobot()
    env = _env(robot)
    env.reset(0)
    began = robot.clock.now()
    step = env.step(np.array([1.0, 2.0, 3.0], np.float32))
    assert robot.clock.now() - began == pytest.approx(0.1)
    assert step.observation[STATE].dtype == np.float32
    assert env.action.names == tuple(UNITS)
    assert robot.sent[-1] == dict(zip(UNITS, (1.0, 2.0, 3.0), strict=True))
    env.close()
    assert not robot.is_connected


def test_the_time_limit_truncates() -> None:
    env = _env(FakeRobot())
    env.reset(0)
    ends = [env.step(np.zeros(3, np.float32))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    env.close()


def test_a_person_has_time_to_reset_the_scene() -> None:
    robot = FakeRobot(FakeRobotConfig(simulated=False))
    env = _env(robot, reset_time_s=5.0, reset_pose=_POSE)
    began = robot.clock.now()
    env.reset(0)
    assert robot.clock.now() - began >= 5.0
    assert _POSE in robot.sent
    env.close()


def test_a_simulated_scene_judges_and_resets_itself() -> None:
    robot = FakeRobot()
    env = _env(robot, reset_time_s=100.0)
    env.reset(7)
    assert robot.clock.now() < 1
    assert robot.world.seeds == [7]
    assert env.step(np.zeros(3, np.float32)).info.success is False
    robot.world.success = True
    step = env.step(np.zeros(3, np.float32))
    assert (step.reward, step.terminated) == (1.0, True)
    env.close()


class _So101(FakeRobot):
    """A robot with an SO-101's channels."""

    @property
    def action_features(self) -> dict[str, object]:  # type: ignore[override]
        return dict(SO101_UNITS)


def _observed() -> Action:
    return dict(zip(SO101_UNITS, (0.0, -60.0, 60.0, 40.0, 0.0, 50.0), strict=True))


def test_the_hand_moves_by_its_step() -> None:
    settings = KinematicsProcessing(end_effector_step_sizes={"x": 0.01, "y": 0.01, "z": 0.01})
    driver = HandDriver(_So101(), settings, 10, use_gripper=True)
    driver.begin(_observed())
    up = driver.targets(np.array([0.0, 0.0, 1.0, 2.0]))
    assert up["gripper.pos"] == 60.0
    assert any(abs(up[name] - value) > 0.1 for name, value in _observed().items())
    stays = driver.targets(np.array([0.0, 0.0, 0.0, 1.0]))
    for name, value in up.items():
        assert stays[name] == pytest.approx(value, abs=0.2)


def test_bounds_hold_the_hand() -> None:
    here = KinematicsProcessing(
        end_effector_step_sizes={"x": 0.02},
        end_effector_bounds={"min": [-1.0, -1.0, -1.0], "max": [-0.5, 1.0, 1.0]},
    )
    driver = HandDriver(_So101(), here, 10, use_gripper=False)
    driver.begin(_observed())
    assert driver.action.size == 3
    moved = driver.targets(np.array([1.0, 0.0, 0.0]))
    assert moved == pytest.approx(_observed())  # out of reach: the arm stays


def test_another_arm_has_no_kinematics() -> None:
    with pytest.raises(UsageError) as refused:
        HandDriver(FakeRobot(), KinematicsProcessing(), 10, use_gripper=True)
    assert refused.value.code == "rl.no-kinematics"
