"""The environment and the interventions of an actor, made from the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from proctor import plugins
from proctor.benchmarks.base import Benchmark, interface_of
from proctor.benchmarks.training_starts import shared_starts_note
from proctor.config.online_training import OnlineTrainConfig
from proctor.config.sections.online import InterventionSource
from proctor.control.loop.session import ControlSession, make_robot, make_teleoperator
from proctor.control.robot_features import robot_interface
from proctor.control.terminal.keys import TerminalKeys
from proctor.errors import UsageError
from proctor.features import Interface, Observation
from proctor.policies.reward_classifier.predictor import RewardPredictor, load_predictor
from proctor.rl.actor.interventions import (
    ExpertIntervention,
    Intervention,
    NoIntervention,
    TeleopIntervention,
)
from proctor.rl.environment.environments import OnlineEnv, SimOnlineEnv
from proctor.rl.environment.processors import ProcessedEnv
from proctor.rl.environment.robot_environment import (
    ActionDriver,
    HandDriver,
    JointDriver,
    RobotEnvSettings,
    RobotOnlineEnv,
)
from proctor.robots.base import Action, Robot, TeleoperatorConfig
from proctor.robots.teleoperators.gamepad import GamepadConfig
from proctor.robots.teleoperators.keyboard import KeyboardConfig, KeyboardEndEffectorConfig
from proctor.types import Task

_ROBOT_FPS = 30
_ROBOT_EPISODE_S = 20.0
"""LeRobot's defaults of a robot's rate and longest episode."""


def environment_interface(config: OnlineTrainConfig) -> Interface:
    """Return the observations and actions of the environment. Opens no simulator and no device."""
    if config.env is not None:
        benchmark, task = _benchmark(config)
        interface = interface_of(benchmark, config.env)
        env: OnlineEnv = SimOnlineEnv(benchmark, task, tuple(interface.features))
    else:
        assert config.robot is not None
        robot = make_robot(config.robot)
        interface = robot_interface(robot, _fps(config))
        env = _robot_env(config, ControlSession(robot), tuple(interface.features))
    processed = ProcessedEnv(env, config.processor)
    return replace(interface, features=processed.features, action=processed.action)


def start_notes(config: OnlineTrainConfig) -> list[str]:
    """Return what the user should know of the episodes' starts."""
    if config.env is None:
        return []
    note = shared_starts_note(_benchmark(config)[0])
    return [] if note is None else [note]


def make_environment(config: OnlineTrainConfig, keys: Sequence[str]) -> ProcessedEnv:
    """Make the environment, which observes ``keys``; a robot is connected."""
    if config.env is not None:
        benchmark, task = _benchmark(config)
        judge = _load_judge(config)
        env = SimOnlineEnv(benchmark, task, _observed(keys, judge), config.rl.reward)
        env.check()
        return ProcessedEnv(env, config.processor, judge)
    assert config.robot is not None
    robot = make_robot(config.robot)
    teleop = None
    if config.intervention.source is not InterventionSource.OFF and not _moves_hand(config):
        teleop = make_teleoperator(_teleop_config(config))
    session = ControlSession(robot, teleop, keys=TerminalKeys())
    judge = _load_judge(config)
    made = ProcessedEnv(
        _robot_env(config, session, _observed(keys, judge)), config.processor, judge
    )
    session.__enter__()
    return made


class _ClassifierJudge:
    """The probability of success that a reward classifier gives."""

    def __init__(self, predictor: RewardPredictor) -> None:
        self._predictor = predictor
        self.keys = tuple(predictor.features)

    def __call__(self, observation: Observation) -> float:
        """Return the probability for images uint8 [C, H, W]."""
        images = {key: np.moveaxis(observation[key], 0, -1)[None] for key in self.keys}
        return float(self._predictor.probabilities(images)[0])


def _load_judge(config: OnlineTrainConfig) -> _ClassifierJudge | None:
    """Return the reward classifier of the settings."""
    path = config.processor.reward_classifier.pretrained_path
    if path is None:
        return None
    predictor = load_predictor(path)
    if not predictor.is_binary:
        raise UsageError(
            f"{path} has more than two classes; a reward needs success and failure",
            code="rl.reward-classes",
        )
    return _ClassifierJudge(predictor)


def _observed(keys: Sequence[str], judge: _ClassifierJudge | None) -> tuple[str, ...]:
    """Return the policy's keys and those of the reward classifier."""
    return tuple(dict.fromkeys([*keys, *(() if judge is None else judge.keys)]))


def _robot_env(
    config: OnlineTrainConfig, session: ControlSession, keys: Sequence[str]
) -> RobotOnlineEnv:
    robot = session.robot
    driver = _driver(config, robot, robot_interface(robot, _fps(config)))
    return RobotOnlineEnv(session, driver, keys, _robot_settings(config, robot))


def make_intervention(config: OnlineTrainConfig, processed: ProcessedEnv) -> Intervention:
    """Make the source of interventions in an environment; its devices are connected."""
    source, env = config.intervention.source, processed.inner
    if source is InterventionSource.OFF:
        return NoIntervention()
    if source is InterventionSource.EXPERT:
        assert isinstance(env, SimOnlineEnv), "the config refuses an expert without a simulator"
        return ExpertIntervention(env, config.intervention)
    if isinstance(env, RobotOnlineEnv):
        keys, teleop = env.session.keys, env.session.teleop
        if teleop is not None:  # it has the robot's channels
            return TeleopIntervention(teleop, env.action.names, keys.reader())
    else:
        keys = TerminalKeys().__enter__()
    teleop = make_teleoperator(_teleop_config(config))
    teleop.use_keys(keys)
    made = TeleopIntervention(teleop, env.action.names, keys.reader())
    teleop.connect()
    return made


def _benchmark(config: OnlineTrainConfig) -> tuple[Benchmark, Task]:
    assert config.env is not None
    benchmark = plugins.benchmark_maker(config.env)()
    tasks = benchmark.tasks()
    if len(tasks) != 1:
        raise UsageError(
            f"online learning needs one task, --env selects {len(tasks)}; choose one with "
            "--env.task or --env.task_ids",
            code="rl.one-task",
        )
    return benchmark, tasks[0]


def _fps(config: OnlineTrainConfig) -> int:
    return config.fps or _ROBOT_FPS


def _driver(config: OnlineTrainConfig, robot: Robot, interface: Interface) -> ActionDriver:
    if not _moves_hand(config):
        return JointDriver(robot, interface)
    use_gripper = config.processor.gripper.use_gripper
    return HandDriver(
        robot, config.processor.inverse_kinematics, _fps(config), use_gripper=use_gripper
    )


def _robot_settings(config: OnlineTrainConfig, robot: Robot) -> RobotEnvSettings:
    reset = config.processor.reset
    seconds = reset.control_time_s or _ROBOT_EPISODE_S
    return RobotEnvSettings(
        fps=_fps(config),
        max_steps=max(1, int(seconds * _fps(config))),
        reset_time_s=reset.reset_time_s,
        reset_pose=_reset_pose(reset.fixed_reset_joint_positions, robot),
        terminate_on_success=reset.terminate_on_success,
    )


def _reset_pose(positions: Sequence[float] | None, robot: Robot) -> Action | None:
    if positions is None:
        return None
    names = tuple(robot.action_features)
    if len(positions) != len(names):
        raise UsageError(
            f"--processor.reset.fixed_reset_joint_positions has {len(positions)} numbers, "
            f"{robot.name} has {len(names)} channels: {', '.join(names)}",
            code="flag.out-of-range",
        )
    return dict(zip(names, map(float, positions), strict=True))


def _teleop_config(config: OnlineTrainConfig) -> TeleoperatorConfig:
    """Return --teleop, or the default teleoperator of the source."""
    if config.teleop is not None:
        return config.teleop
    if config.intervention.source is InterventionSource.GAMEPAD:
        return GamepadConfig()
    moves_joints = config.robot is not None and not _moves_hand(config)
    return KeyboardConfig() if moves_joints else KeyboardEndEffectorConfig()


def _moves_hand(config: OnlineTrainConfig) -> bool:
    kinematics = config.processor.inverse_kinematics
    return kinematics.urdf_path is not None or kinematics.end_effector_step_sizes is not None
