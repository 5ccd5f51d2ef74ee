"""Settings of online learning: LeRobot's files as they are, our flags, refused values."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from proctor.config.base import plugin_sections
from proctor.config.builder import build, known_types
from proctor.config.lerobot.online import build_online
from proctor.config.online_training import OnlineTrainConfig, parse_address
from proctor.config.sections.online import InterventionSource, LeRobotFix, Role
from proctor.errors import UsageError
from proctor.policies.gaussian_actor.config import GaussianActorConfig

GIVEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden/data/rl_run/config_given.json").read_text()
)
WRITTEN: dict[str, Any] = json.loads(
    (
        Path(__file__).parents[2] / "golden/data/rl_run/000006/pretrained_model/train_config.json"
    ).read_text()
)
LEAST = {"policy.type": "gaussian_actor", "env.type": "fake"}


def refused(**changes: Any) -> str:
    with pytest.raises(UsageError) as caught:
        build_online({**LEAST, **changes})
    return caught.value.code


def test_a_file_of_lerobots_learner_is_read_unchanged() -> None:
    config = build_online(GIVEN)
    assert isinstance(config.policy, GaussianActorConfig)
    assert config.env is not None
    assert (config.env.type, config.env.task) == ("gym_hil", "Fake-v0")
    assert (config.policy.online_steps, config.policy.latent_dim) == (60, 8)
    assert config.policy.actor_learner.learner_port == 50251
    assert config.policy.dataset_stats == GIVEN["policy"]["dataset_stats"]
    assert config.algorithm.utd_ratio == 2
    assert config.algorithm.critic_network_kwargs.hidden_dims == [8, 8]
    assert (config.batch_size, config.seed, config.save_freq, config.log_freq) == (8, 7, 6, 2)
    assert config.dataset.root == Path("e2e/ds")
    assert config.rl.inputs == ["observation.images.front", "observation.state"]
    assert config.fps == 50


def test_the_file_of_a_checkpoint_of_lerobot_is_read() -> None:
    config = build_online({name: value for name, value in WRITTEN.items() if name != "resume"})
    given = build_online(GIVEN)
    assert config.algorithm == given.algorithm
    assert isinstance(config.policy, GaussianActorConfig)
    assert isinstance(given.policy, GaussianActorConfig)
    assert config.policy.actor_network == given.policy.actor_network
    assert config.policy.actor_learner == given.policy.actor_learner
    assert config.policy.dataset_stats == given.policy.dataset_stats


def test_flags_without_effect_are_named() -> None:
    notes = " ".join(build_online(GIVEN).notes)
    assert all(name in notes for name in ("--steps", "--num_workers"))


def test_a_reset_processor_and_no_dataset_are_read() -> None:
    given = copy.deepcopy(GIVEN)
    given["dataset"] = None
    given["env"]["processor"]["reset"] = {
        "fixed_reset_joint_positions": [0, 1.5],
        "reset_time_s": 2.5,
        "control_time_s": 20.0,
        "terminate_on_success": False,
    }
    given["env"]["processor"]["inverse_kinematics"] = None
    config = build_online(given)
    assert not config.dataset.is_given
    reset = config.processor.reset
    assert (reset.fixed_reset_joint_positions, reset.control_time_s) == ([0.0, 1.5], 20.0)
    assert not reset.terminate_on_success


def test_a_real_robot_of_lerobots_file_becomes_the_robots_section() -> None:
    given = copy.deepcopy(GIVEN)
    given["env"] |= {
        "name": "real_robot",
        "task": "pick",
        "robot": {"type": "so101_follower", "port": "sim"},
        "teleop": {"type": "so101_leader", "port": "/dev/ttyACM1"},
    }
    config = build_online(given)
    assert config.env is None
    assert config.robot is not None
    assert config.teleop is not None
    assert (config.robot.type, config.teleop.type) == ("so101_follower", "so101_leader")
    assert config.rl.task == "pick"


def test_a_flag_wins_over_lerobots_name_for_it() -> None:
    config = build_online({**GIVEN, "env.processor.gripper.use_gripper": "false", "env.fps": "10"})
    assert not config.processor.gripper.use_gripper
    assert config.fps == 10


@pytest.mark.parametrize("given", [GIVEN, LEAST | {"rl.fix": "penalty"}])
def test_the_resolved_settings_build_the_same_config(given: dict[str, Any]) -> None:
    config = build_online(given)
    again = build(OnlineTrainConfig, config.as_dict())
    assert again.as_dict() == config.as_dict()


def test_fixes_are_read_as_names() -> None:
    fixes = build_online({**LEAST, "rl.fix": "truncation,batch"}).rl.fixes
    assert fixes == {LeRobotFix.TRUNCATION, LeRobotFix.BATCH}


def test_the_defaults_are_lerobots() -> None:
    config = build_online(LEAST)
    assert (config.batch_size, config.online_ratio, config.seed) == (8, 0.5, 1000)
    assert (config.log_freq, config.save_freq) == (200, 20_000)
    assert not config.rl.lockstep
    assert config.rl.fixes == frozenset()
    assert config.role is Role.BOTH
    assert config.intervention.source is InterventionSource.OFF


@pytest.mark.parametrize(
    ("flag", "value", "code"),
    [
        ("rl.fix", "truncaton", "flag.invalid-value"),
        ("rl.actors", "0", "flag.out-of-range"),
        ("rl.inputz", "[a]", "flag.unknown"),
        ("algorithm.type", "ppo", "flag.invalid-value"),
        ("algorithm.discount", "1.5", "flag.out-of-range"),
        ("algorithm.num_critics", "0", "flag.out-of-range"),
        ("algorithm.critic_lr", "-1", "flag.out-of-range"),
        ("online_ratio", "0", "flag.out-of-range"),
        ("batch_size", "0", "flag.out-of-range"),
        ("policy.online_steps", "0", "flag.out-of-range"),
        ("policy.type", "act", "policy.not-trainable"),
        ("learner", "somewhere", "flag.invalid-value"),
        ("intervention.source", "expert", "flag.missing"),
        ("intervention.every", "3", "flag.conflict"),
        ("intervention.source", "leader", "flag.missing"),
        ("processor.image_preprocessing.resize_size", "[0,9]", "flag.out-of-range"),
        ("mixer", "other", "flag.unsupported"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_starts(flag: str, value: str, code: str) -> None:
    assert refused(**{flag: value}) == code


@pytest.mark.parametrize(
    "flags",
    [
        {"rl.lockstep": "true", "rl.actors": "2"},
        {"role": "actor", "resume": "true"},
        {"role": "learner", "rl.actors": "2"},
        {"env_eval_freq": "10", "save_checkpoint": "false"},
        {"robot.type": "so101_follower", "robot.port": "sim"},
        {"role": "learner", "tls": "true"},
        {"role": "actor", "tls_cert": "cert.pem", "tls_key": "key.pem"},
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags: dict[str, str]) -> None:
    assert refused(**flags) == "flag.conflict"


def test_addresses_have_a_host_and_a_port() -> None:
    assert parse_address("robot.local:50051") == ("robot.local", 50051)
    assert parse_address("[::1]:0") == ("::1", 0)


def test_only_policies_that_learn_online_are_listed() -> None:
    section = plugin_sections(OnlineTrainConfig)["policy"]
    assert known_types(OnlineTrainConfig, section) == ["gaussian_actor"]
