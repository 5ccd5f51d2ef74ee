"""The policy driver: a robot's dicts in, the policy's chunks out as channels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.control.policy.driver import PolicyDriver, RobotPolicy, load_robot_policy
from proctor.control.robot_features import ChannelMapping, robot_interface
from proctor.errors import PolicyError, RobotError, SpecMismatch, UsageError
from proctor.features import ACTION, ENVIRONMENT_STATE, STATE, Array
from proctor.policies.base import Batch, Policy, PolicySpec
from proctor.policies.lerobot.checkpoint.trained_channels import TrainedChannels, trained_channels
from proctor.policies.scripted.expert import ExpertConfig
from proctor.policies.scripted.random import RandomConfig
from proctor.policies.scripted.zero import ZeroConfig
from proctor.types import EpisodeSpec, Task
from tests.unit.control.trial_robots import ReachRobot

TASK = Task("reach_follower", 0, "reach", "reach the target", max_steps=20, fps=30)
SPEC = EpisodeSpec(TASK, 0, 7)
UNITS = {ACTION: ("degrees", "percent"), STATE: ("degrees", "percent")}


class ChunkPolicy(Policy):
    """Answers chunks of three; the first number is the query's step, then its count."""

    def __init__(self, inputs: Sequence[str] = (STATE,), n_obs_steps: int = 1) -> None:
        self.spec = PolicySpec("chunks", tuple(inputs), n_obs_steps, n_action_steps=3)
        self.batches: list[dict[str, Array]] = []
        self.states: list[Any] = []
        self.ended: list[Any] = []

    def new_episode(self, spec: EpisodeSpec) -> object:
        self.states.append(object())
        return self.states[-1]

    def act(self, batch: Batch) -> Array:
        assert batch.queries[0].state is self.states[-1]
        self.batches.append(batch.observations)
        return np.array([[[batch.queries[0].step, i] for i in range(3)]], np.float32)

    def end_episode(self, state: Any) -> None:
        self.ended.append(state)


def _driver(policy: Policy, robot: ReachRobot | None = None) -> tuple[PolicyDriver, ReachRobot]:
    robot = robot or ReachRobot()
    made = RobotPolicy(policy, robot_interface(robot, 30), ChannelMapping(robot))
    driver = PolicyDriver(made)
    driver.start_episode(SPEC)
    return driver, robot


def test_an_interface_has_channels_cameras_and_limits() -> None:
    interface = robot_interface(ReachRobot(), 30)
    assert interface.features[STATE].names == ("arm.pos", "gripper.pos")
    assert interface.features["observation.images.front"].shape == (8, 6, 3)
    assert (interface.action.size, interface.fps) == (2, 30)
    low, high = interface.action.bounds
    assert low.tolist() == [-90, -np.inf]
    assert high.tolist() == [90, np.inf]


def test_a_simulated_scene_shows_its_state_if_there_are_no_cameras() -> None:
    assert ENVIRONMENT_STATE not in robot_interface(ReachRobot(), 30).features
    robot = ReachRobot(camera=False)
    assert robot_interface(robot, 30).features[ENVIRONMENT_STATE].names == ("target.x",)
    policy = ChunkPolicy([STATE, ENVIRONMENT_STATE])
    driver, _ = _driver(policy, robot)
    robot.world.reset(3)
    driver.act(robot.get_observation())
    np.testing.assert_array_equal(policy.batches[0][ENVIRONMENT_STATE], [[[13.0]]])


def test_a_real_robot_has_no_state_of_its_scene() -> None:
    robot = ReachRobot(scene=False, camera=False)
    assert ENVIRONMENT_STATE not in robot_interface(robot, 30).features


def test_a_chunk_is_executed_before_the_next_inference() -> None:
    policy = ChunkPolicy()
    driver, robot = _driver(policy)
    actions = [driver.act(robot.get_observation()) for _ in range(7)]
    assert [action["arm.pos"] for action in actions] == [0, 0, 0, 3, 3, 3, 6]
    assert [action["gripper.pos"] for action in actions] == [0, 1, 2, 0, 1, 2, 0]
    assert len(policy.batches) == len(driver.infer_s) == 3


def test_the_history_is_of_consecutive_steps_oldest_first() -> None:
    policy = ChunkPolicy(n_obs_steps=2)
    driver, robot = _driver(policy)
    for step in range(4):
        robot.position["arm.pos"] = float(step)
        driver.act(robot.get_observation())
    seen = [batch[STATE][0, :, 0].tolist() for batch in policy.batches]
    assert seen == [[0, 0], [2, 3]]


def test_images_and_state_reach_the_policy_by_name() -> None:
    policy = ChunkPolicy(inputs=("observation.images.front", STATE))
    driver, robot = _driver(policy)
    robot.world.target = 12.0
    driver.act(robot.get_observation())
    assert policy.batches[0]["observation.images.front"].shape == (1, 1, 8, 6, 3)
    assert int(policy.batches[0]["observation.images.front"].max()) == 12


def test_every_episode_has_its_own_state_and_an_empty_queue() -> None:
    policy = ChunkPolicy()
    driver, robot = _driver(policy)
    driver.act(robot.get_observation())
    driver.start_episode(SPEC)
    driver.act(robot.get_observation())
    driver.close()
    assert policy.ended == policy.states
    assert len(policy.batches) == 2


def test_a_dry_run_commands_nothing() -> None:
    policy = ChunkPolicy()
    driver, robot = _driver(policy)
    assert driver.dry_run(robot.get_observation(), SPEC) >= 0
    assert robot.sent == []
    assert policy.ended == policy.states


def test_actions_that_are_not_finite_are_refused() -> None:
    class Broken(ChunkPolicy):
        def act(self, batch: Batch) -> Array:
            return np.full((1, 3, 2), np.nan, np.float32)

    driver, robot = _driver(Broken())
    with pytest.raises(PolicyError) as refused:
        driver.act(robot.get_observation())
    assert refused.value.code == "policy.not-finite"


def test_a_reading_that_is_not_finite_is_the_robots_fault() -> None:
    driver, robot = _driver(ChunkPolicy())
    robot.position["arm.pos"] = float("nan")
    with pytest.raises(RobotError) as refused:
        driver.act(robot.get_observation())
    assert refused.value.code == "robot.not-finite"


def test_an_image_of_another_size_than_declared_is_refused() -> None:
    driver, robot = _driver(ChunkPolicy(inputs=("observation.images.front",)))
    seen = robot.get_observation() | {"front": np.zeros((4, 4, 3), np.uint8)}
    with pytest.raises(RobotError) as refused:
        driver.act(seen)
    assert refused.value.code == "robot.wrong-image-shape"


def test_vectors_follow_the_order_of_the_training_dataset() -> None:
    turned = ("gripper.pos", "arm.pos")
    channels = ChannelMapping(ReachRobot(), TrainedChannels({ACTION: turned, STATE: turned}, {}))
    seen = channels.features({"arm.pos": 1.0, "gripper.pos": 2.0}, [STATE])
    assert seen[STATE].tolist() == [2, 1]
    assert channels.action(np.array([3.0, 4.0])) == {"gripper.pos": 3.0, "arm.pos": 4.0}
    assert channels.vector({"arm.pos": 4.0, "gripper.pos": 3.0}).tolist() == [3, 4]


def test_another_robots_channels_are_refused() -> None:
    with pytest.raises(SpecMismatch) as refused:
        ChannelMapping(ReachRobot(), TrainedChannels({ACTION: ("arm.pos", "hand.pos")}, {}))
    assert refused.value.code == "robot.channel-mismatch"


def test_other_units_are_refused() -> None:
    names = {ACTION: ("arm.pos", "gripper.pos")}
    ChannelMapping(ReachRobot(), TrainedChannels(names, UNITS))
    with pytest.raises(SpecMismatch) as refused:
        ChannelMapping(
            ReachRobot(), TrainedChannels(names, {ACTION: ("signed percent", "percent")})
        )
    assert refused.value.code == "robot.unit-mismatch"


@pytest.mark.parametrize("config", [ZeroConfig(), RandomConfig()], ids=["zero", "random"])
def test_policies_without_weights_drive_a_robot(config: Any) -> None:
    robot = ReachRobot()
    driver = PolicyDriver(load_robot_policy(config, robot, TASK))
    driver.start_episode(SPEC)
    assert driver.act(robot.get_observation()).keys() == robot.action_features.keys()
    driver.close()


def test_an_expert_needs_a_benchmark() -> None:
    with pytest.raises(UsageError) as refused:
        load_robot_policy(ExpertConfig(), ReachRobot(), TASK)
    assert refused.value.code == "env.no-expert"


def test_a_missing_camera_is_refused_before_anything_moves() -> None:
    config = RandomConfig(inputs=["observation.images.wrist"])
    with pytest.raises(SpecMismatch) as refused:
        load_robot_policy(config, ReachRobot(), TASK)
    assert refused.value.code == "policy.missing-input"


def test_channels_of_a_checkpoint_come_from_its_dataset(tmp_path: Path) -> None:
    dataset, checkpoint = tmp_path / "data", tmp_path / "a" / "b" / "c" / "pretrained_model"
    checkpoint.mkdir(parents=True)
    (dataset / "meta").mkdir(parents=True)
    entry = {"dtype": "float32", "shape": [2], "names": ["arm.pos", "gripper.pos"]}
    features = {ACTION: entry | {"info": {"units": ["degrees", "percent"]}}, STATE: entry}
    (dataset / "meta/info.json").write_text(json.dumps({"features": features}))
    assert trained_channels(checkpoint).names == {}
    settings = {"dataset": {"root": str(dataset)}}
    (checkpoint / "train_config.json").write_text(json.dumps(settings))
    found = trained_channels(checkpoint)
    assert found.names == dict.fromkeys((ACTION, STATE), ("arm.pos", "gripper.pos"))
    assert found.units == {ACTION: ("degrees", "percent")}
