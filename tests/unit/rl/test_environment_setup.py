"""Environment and interventions of an actor, from settings."""

from typing import Any, ClassVar

import numpy as np
import pytest

from proctor.benchmarks.fake import Fake
from proctor.config.builder import build
from proctor.config.online_training import OnlineTrainConfig
from proctor.errors import UsageError
from proctor.features import IMAGE, STATE, Feature, FeatureKind
from proctor.rl.actor.interventions import ExpertIntervention, NoIntervention, TeleopIntervention
from proctor.rl.environment import setup as environment_setup
from proctor.rl.environment.setup import (
    environment_interface,
    make_environment,
    make_intervention,
    start_notes,
)
from proctor.types import EpisodeSpec, Task
from tests.fake_robots import UNITS, FakeRobot

_FAKE = {"type": "fake", "episode_length": 5}
_ROBOT = {"type": "tests.fake_robots:ROBOT"}


def _config(**settings: Any) -> OnlineTrainConfig:
    return build(OnlineTrainConfig, {"policy": {"type": "gaussian_actor"}} | settings)


def test_a_benchmark_is_an_environment() -> None:
    config = _config(env=_FAKE, rl={"reward": "success"})
    interface = environment_interface(config)
    assert interface.action.size == 2
    env = make_environment(config, [STATE])
    assert set(env.reset(0)) == {STATE}
    assert env.step(np.zeros(2)).reward == 0.0
    assert isinstance(make_intervention(config, env), NoIntervention)
    env.close()


def test_processors_change_the_interface() -> None:
    config = _config(
        env={**_FAKE, "image_size": 64},
        processor={
            "image_preprocessing": {"resize_size": [40, 48]},
            "observation": {"add_joint_velocity_to_observation": True},
            "reset": {"control_time_s": 0.2},
        },
    )
    features = environment_interface(config).features
    assert features[IMAGE].shape == (40, 48, 3)
    assert features[STATE].shape == (4,)
    env = make_environment(config, [STATE])
    env.reset(0)
    assert [env.step(np.zeros(2)).truncated for _ in range(2)] == [False, True]


def test_a_finite_list_of_starts_that_evaluations_share_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spec(self: Fake, task: Task, index: int, seed: int) -> EpisodeSpec:
        return EpisodeSpec(task, index, seed + index, init_state=index % 15)

    config = _config(env=_FAKE)
    assert start_notes(config) == []
    monkeypatch.setattr(Fake, "spec", spec)
    (note,) = start_notes(config)
    assert note.startswith("fake: its episodes start from the published init states")
    monkeypatch.setattr(Fake, "places_scenes", True)  # as LIBERO
    assert start_notes(config) == []
    assert start_notes(_config(robot=_ROBOT)) == []


def test_several_tasks_are_refused() -> None:
    with pytest.raises(UsageError) as refused:
        environment_interface(_config(env={**_FAKE, "n_tasks": 2}))
    assert refused.value.code == "rl.one-task"


def test_the_expert_of_the_benchmark_intervenes() -> None:
    config = _config(env=_FAKE, intervention={"source": "expert", "every": 1})
    env = make_environment(config, [STATE])
    intervention = make_intervention(config, env)
    assert isinstance(intervention, ExpertIntervention)
    env.reset(0)
    intervention.begin(0)
    assert intervention.signal(0, None).action is not None


def test_a_value_limit_needs_a_gripper_critic() -> None:
    limit = {"source": "expert", "below": 0.1}
    with pytest.raises(UsageError) as refused:
        _config(env=_FAKE, intervention=limit).validate()
    assert refused.value.code == "flag.conflict"
    gripper = {"type": "gaussian_actor", "num_discrete_actions": 3}
    _config(env=_FAKE, intervention=limit, policy=gripper).validate()


def test_a_teleoperator_with_other_channels_is_refused() -> None:
    config = _config(env=_FAKE, intervention={"source": "keyboard"}, role="actor")
    with pytest.raises(UsageError) as refused:
        make_intervention(config, make_environment(config, [STATE]))
    assert refused.value.code == "rl.teleop-mismatch"


def test_a_robot_is_an_environment_and_a_leader_intervenes() -> None:
    config = _config(
        robot=_ROBOT,
        teleop={"type": "tests.fake_robots:TELEOPERATOR"},
        intervention={"source": "leader"},
        fps=10,
        processor={"reset": {"fixed_reset_joint_positions": [1.0, 2.0, 3.0]}},
    )
    assert environment_interface(config).action.names == tuple(UNITS)
    env = make_environment(config, [STATE])
    intervention = make_intervention(config, env)
    assert isinstance(intervention, TeleopIntervention)
    np.testing.assert_array_equal(env.reset(0)[STATE], [1.0, 2.0, 3.0])
    env.step(np.zeros(3, np.float32))
    assert FakeRobot.made[-1].sent[-1] == dict.fromkeys(UNITS, 0.0)
    env.close()


def test_a_reset_pose_of_another_size_is_refused() -> None:
    config = _config(robot=_ROBOT, processor={"reset": {"fixed_reset_joint_positions": [1.0, 2.0]}})
    with pytest.raises(UsageError) as refused:
        environment_interface(config)
    assert refused.value.code == "flag.out-of-range"


class _SecondStepSucceeds:
    """A reward classifier that finds success from the second step on."""

    is_binary = True
    features: ClassVar[dict[str, Feature]] = {
        IMAGE: Feature(FeatureKind.VISUAL, (8, 8, 3), "uint8")
    }

    def __init__(self) -> None:
        self.judged: list[np.ndarray] = []

    def probabilities(self, images: dict[str, np.ndarray]) -> np.ndarray:
        self.judged.append(images[IMAGE])
        return np.array([0.9 if len(self.judged) > 1 else 0.4])


def test_a_reward_classifier_judges_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = _SecondStepSucceeds()
    monkeypatch.setattr(environment_setup, "load_predictor", lambda path: classifier)
    config = _config(
        env={**_FAKE, "image_size": 8, "endless": True},
        rl={"reward": "success"},
        processor={"reward_classifier": {"pretrained_path": "trained", "success_reward": 2.0}},
    )
    env = make_environment(config, [STATE])
    env.reset(0)
    first, second = env.step(np.zeros(2)), env.step(np.zeros(2))
    assert (first.reward, first.terminated, first.info.success) == (0.0, False, False)
    assert (second.reward, second.terminated, second.info.success) == (2.0, True, True)
    assert classifier.judged[0].shape == (1, 8, 8, 3)


def test_a_classifier_of_many_classes_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = _SecondStepSucceeds()
    classifier.is_binary = False
    monkeypatch.setattr(environment_setup, "load_predictor", lambda path: classifier)
    config = _config(env=_FAKE, processor={"reward_classifier": {"pretrained_path": "trained"}})
    with pytest.raises(UsageError) as refused:
        make_environment(config, [STATE])
    assert refused.value.code == "rl.reward-classes"
