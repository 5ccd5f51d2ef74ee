"""Processors of online environments against LeRobot 0.6.1's own."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from recipes import GOLDEN, load_case

from proctor.config.sections.env_processors import EnvProcessorSettings
from proctor.errors import UsageError
from proctor.features import STATE, ActionSpec, Feature, FeatureKind, Observation
from proctor.rl.actor.actor import Actor, ActorDecision, ActorSettings
from proctor.rl.actor.interventions import InterventionSignal, to_vector
from proctor.rl.environment.environments import EnvStep, StepInfo
from proctor.rl.environment.processors import (
    CropResize,
    GripperPenalty,
    JointVelocity,
    ProcessedEnv,
)
from proctor.rl.link.links import ActorWeights, InProcessLink, LearnerEndpoint
from proctor.rl.transitions import Transition

CONFIG, INPUTS, OUTPUTS = load_case("hil_processors")
NOTES = json.loads((GOLDEN / "hil_processors/notes.json").read_text())
FRONT, OTHER = "observation.images.front", "observation.images.other"


class ArmEnv:
    """Returns fixed states and an image; a test sets the position and command of the gripper."""

    features: ClassVar = {
        STATE: Feature(FeatureKind.STATE, (4,), "float32"),
        FRONT: Feature(FeatureKind.VISUAL, (32, 36, 3), "uint8"),
    }
    action = ActionSpec(4, names=("delta_x", "delta_y", "delta_z", "gripper"))
    fps = 10
    task = "lift the cube"
    start = None

    def __init__(self) -> None:
        self.steps = 0
        self.position, self.command = 0.0, 0.0

    def reset(self, seed: int) -> Observation:
        self.steps = 0
        return self._observation()

    def step(self, action: np.ndarray) -> EnvStep:
        self.steps += 1
        return EnvStep(self._observation(), 0.0, False, False, StepInfo())

    def gripper_position(self) -> float:
        return self.position

    def gripper_command(self) -> float:
        return self.command

    def motor_currents(self) -> np.ndarray:
        return np.full(4, self.steps, np.float32)

    def close(self) -> None:
        pass

    def _observation(self) -> Observation:
        state = INPUTS[f"state{min(self.steps, 2)}"][0].numpy()
        return {STATE: state, FRONT: np.full((3, 32, 36), 51, np.uint8)}


def settings(**sections: dict[str, Any]) -> EnvProcessorSettings:
    made = EnvProcessorSettings()
    for section, values in sections.items():
        for name, value in values.items():
            setattr(getattr(made, section), name, value)
    return made


def test_joint_velocities_are_lerobots() -> None:
    add = JointVelocity(NOTES["joint_velocity_dt"])
    for i in range(3):
        found = add({STATE: INPUTS[f"state{i}"][0].numpy()})[STATE]
        assert torch.equal(torch.from_numpy(found), OUTPUTS[f"joint_velocity{i}"][0])


def test_crops_and_sizes_are_lerobots() -> None:
    image = INPUTS["image"][0].numpy()
    crop = CropResize({FRONT: tuple(NOTES["crop_top_left_height_width"])}, tuple(NOTES["resize"]))
    found = crop({FRONT: image, OTHER: image})

    for key, name in ((FRONT, "crop_resize.front"), (OTHER, "resize_only.other")):
        assert torch.equal(torch.from_numpy(found[key]), OUTPUTS[name][0]), name


def test_gripper_penalties_are_lerobots() -> None:
    given = NOTES["gripper_penalty"]
    env = ArmEnv()
    processor = settings(gripper={"gripper_penalty": given["penalty"]})
    processor.max_gripper_pos = given["max_gripper_pos"]
    processed = ProcessedEnv(env, processor)
    processed.reset(0)
    for position, command, expected in given["rows_pos_cmd_penalty"]:
        assert (
            GripperPenalty(given["penalty"], given["max_gripper_pos"])(position, command)
            == expected
        )
        env.position, env.command = position, command
        assert processed.step(np.zeros(4)).info.discrete_penalty == expected


def test_the_time_limit_is_lerobots() -> None:
    env = ProcessedEnv(ArmEnv(), settings(reset={"control_time_s": 0.3}))
    env.reset(0)
    found = [env.step(np.zeros(4)).truncated for _ in NOTES["time_limit_3"]]

    assert found == NOTES["time_limit_3"]
    env.reset(1)
    assert not env.step(np.zeros(4)).truncated


class GivenSignal:
    """Gives one signal, then ends the episode."""

    needs_value = False
    is_repeatable = True

    def __init__(self, signal: InterventionSignal) -> None:
        self._signal = signal

    def begin(self, episode: int) -> None:
        pass

    def signal(self, step: int, value: float | None) -> InterventionSignal:
        return self._signal if step == 0 else InterventionSignal(failure=True)

    def close(self) -> None:
        pass


class GivenAction:
    """A policy with one action."""

    def load(self, weights: ActorWeights) -> None:
        pass

    def decide(self, observation: Observation, generator: torch.Generator | None) -> ActorDecision:
        return ActorDecision(np.array([0.1, 0.2, 0.3, 1.0], np.float32))


def first_transition(signal: InterventionSignal, *, terminate_on_success: bool) -> Transition:
    endpoint = LearnerEndpoint()
    endpoint.publish(ActorWeights({}, 0))
    how = ActorSettings(0, online_steps=1, terminate_on_success=terminate_on_success)
    link = InProcessLink(endpoint, "actor")
    Actor(ArmEnv(), GivenAction(), GivenSignal(signal), link, how).run()
    return endpoint.take()[0].transition


@pytest.mark.parametrize(
    "case", NOTES["intervention"], ids=lambda case: "-".join(map(str, case.values()))[:60]
)
def test_an_intervention_changes_action_reward_and_end_as_lerobots(case: dict[str, Any]) -> None:
    action = None
    if case["is_intervention"]:
        names = ["delta_x", "delta_y", "delta_z", "gripper"][: 4 if case["use_gripper"] else 3]
        teleop = dict(
            zip(["delta_x", "delta_y", "delta_z", "gripper"], [0.5, -0.25, 1.0, 2.0], strict=True)
        )
        action = to_vector(teleop, names)
        if case["teleop"] == "array":
            action = np.array([0.5, -0.25, 1.0, 0.0], np.float32)
    signal = InterventionSignal(action, success=case["success"], failure=case["terminate"])
    made = first_transition(signal, terminate_on_success=case["terminate_on_success"])

    np.testing.assert_array_equal(made.action, np.array(case["action"], np.float32))
    assert (made.done, made.reward) == (case["done"], case["reward"])
    assert made.is_intervention == case["is_intervention"]


def test_all_processors_together_give_the_features_that_they_announce() -> None:
    wants = settings(
        observation={
            "add_joint_velocity_to_observation": True,
            "add_current_to_observation": True,
        },
        image_preprocessing={
            "crop_params_dict": {FRONT: [3, 5, 20, 24]},
            "resize_size": [16, 18],
        },
    )
    env = ProcessedEnv(ArmEnv(), wants, probability=lambda seen: float(seen[STATE][-1] > 1))
    first = env.reset(0)

    assert env.features[STATE].shape == first[STATE].shape == (12,)
    assert env.features[FRONT].shape == (16, 18, 3)
    assert first[FRONT].shape == (3, 16, 18)
    np.testing.assert_allclose(first[FRONT], 0.2, rtol=1e-6)
    steps = [env.step(np.zeros(4)) for _ in range(2)]
    assert [step.info.success for step in steps] == [False, True]
    assert [step.reward for step in steps] == [0.0, 1.0]
    assert [step.terminated for step in steps] == [False, True]


@pytest.mark.parametrize(
    "crop", [{OTHER: [0, 0, 4, 4]}, {FRONT: [20, 0, 20, 4]}, {STATE: [0, 0, 4, 4]}], ids=str
)
def test_a_crop_outside_of_the_image_is_refused(crop: dict[str, list[int]]) -> None:
    with pytest.raises(UsageError):
        ProcessedEnv(ArmEnv(), settings(image_preprocessing={"crop_params_dict": crop}))
