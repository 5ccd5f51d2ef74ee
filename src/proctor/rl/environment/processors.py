"""Processors between an environment and the policy, in LeRobot's order (--processor.*).

ProcessedEnv    an environment with the processors of its settings
JointVelocity   appends velocities to the state
CropResize      crops images and resizes them
GripperPenalty  penalises a command that flips the gripper from one end to the other
RewardJudge     the reward of a success classifier
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from proctor.config.sections.env_processors import EnvProcessorSettings
from proctor.errors import UsageError
from proctor.features import STATE, ActionSpec, Array, Feature, FeatureKind, Observation
from proctor.rl.environment.environments import EnvStep, OnlineEnv

SuccessProbability = Callable[[Observation], float]
"""A success classifier: the probability that an observation shows success."""
_NEARLY_CLOSED, _NEARLY_OPEN = 0.1, 0.9


@runtime_checkable
class CurrentSensor(Protocol):
    """An environment that measures motor currents."""

    def motor_currents(self) -> Array:
        """Return the motors' currents now, float32 [J]."""


@runtime_checkable
class GripperSensor(Protocol):
    """An environment that knows its gripper's position and the last command to it."""

    def gripper_position(self) -> float:
        """Return the position now, 0 (closed) to the open position."""

    def gripper_command(self) -> float:
        """Return the position that the last step commanded."""


class ObservationProcessor(Protocol):
    """Changes the observations of an environment."""

    def features(self, features: Mapping[str, Feature]) -> dict[str, Feature]:
        """Return the features after the change."""

    def reset(self) -> None:
        """Begin an episode."""

    def __call__(self, observation: Observation) -> Observation:
        """Return the changed observation."""


class JointVelocity:
    """Appends (state - last state) / ``period_s`` to the state; zeros at the first step."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._last: Array | None = None

    def features(self, features: Mapping[str, Feature]) -> dict[str, Feature]:
        """Double the width of the state."""
        return _with_wider_state(features, features[STATE].shape[0])

    def reset(self) -> None:
        """Forget the last state."""
        self._last = None

    def __call__(self, observation: Observation) -> Observation:
        """Append the velocities."""
        state = np.asarray(observation[STATE], np.float32)
        last = state if self._last is None else self._last
        self._last = state
        velocity = (state - last) / np.float32(self._period_s)
        return observation | {STATE: np.concatenate([state, velocity])}


class MotorCurrents:
    """Appends the motors' currents to the state."""

    def __init__(self, sensor: CurrentSensor, count: int) -> None:
        self._sensor, self._count = sensor, count

    def features(self, features: Mapping[str, Feature]) -> dict[str, Feature]:
        """Widen the state by the number of motors."""
        return _with_wider_state(features, self._count)

    def reset(self) -> None:
        """Do nothing."""

    def __call__(self, observation: Observation) -> Observation:
        """Append the currents."""
        currents = np.asarray(self._sensor.motor_currents(), np.float32)
        return observation | {STATE: np.concatenate([observation[STATE], currents])}


class CropResize:
    """Crops images and resizes them: antialiased bilinear, float32 in 0..1."""

    def __init__(
        self, crops: Mapping[str, tuple[int, int, int, int]], size: tuple[int, int] | None
    ) -> None:
        """Crop each key of ``crops`` at (top, left, height, width); resize all images."""
        self._crops, self._size = crops, size

    def features(self, features: Mapping[str, Feature]) -> dict[str, Feature]:
        """Give images their new size."""
        for key, (top, left, height, width) in self._crops.items():
            feature = features.get(key)
            if feature is None or feature.kind is not FeatureKind.VISUAL:
                raise UsageError(
                    f"--processor.image_preprocessing.crop_params_dict: there is no image {key}",
                    code="rl.unknown-observation",
                )
            if top + height > feature.shape[0] or left + width > feature.shape[1]:
                raise UsageError(
                    f"--processor.image_preprocessing.crop_params_dict: the crop of {key} ends at "
                    f"row {top + height}, column {left + width}, but the image has "
                    f"{feature.shape[0]} x {feature.shape[1]} pixels",
                    code="flag.out-of-range",
                )
        return {key: self._resized(key, feature) for key, feature in features.items()}

    def reset(self) -> None:
        """Do nothing."""

    def __call__(self, observation: Observation) -> Observation:
        """Crop and resize the images [C, H, W]."""
        return {
            key: self._image(key, value) if value.ndim == 3 else value
            for key, value in observation.items()
        }

    def _image(self, key: str, image: Array) -> Array:
        if self._size is None and key not in self._crops:
            return image
        pixels = image.astype(np.float32) / 255 if image.dtype == np.uint8 else image
        if key in self._crops:
            top, left, height, width = self._crops[key]
            pixels = pixels[:, top : top + height, left : left + width]
        return pixels if self._size is None else _resized_image(pixels, self._size)

    def _resized(self, key: str, feature: Feature) -> Feature:
        if feature.kind is not FeatureKind.VISUAL:
            return feature
        _, _, *cropped = self._crops.get(key, (0, 0, *feature.shape[:2]))
        size = cropped if self._size is None else self._size
        return replace(feature, shape=(*size, feature.shape[2]))


def _resized_image(image: Array, size: tuple[int, int]) -> Array:
    import torch
    from torch.nn.functional import interpolate

    given = torch.from_numpy(np.ascontiguousarray(image))[None]
    made = interpolate(given, size, mode="bilinear", align_corners=False, antialias=True)
    resized: Array = made[0].clamp(0, 1).numpy()
    return resized


@dataclass(frozen=True)
class GripperPenalty:
    """A penalty for commands that flip the gripper between closed and open."""

    penalty: float
    """Added to the reward of the gripper critic; 0 or negative."""
    max_position: float
    """Position of the open gripper."""

    def __call__(self, position: float, command: float) -> float:
        """Return the penalty of ``command`` at ``position``, or 0."""
        at, wanted = position / self.max_position, command / self.max_position
        opens = at < _NEARLY_CLOSED and wanted > _NEARLY_OPEN
        closes = at > _NEARLY_OPEN and wanted < _NEARLY_CLOSED
        return self.penalty * (opens or closes)


@dataclass(frozen=True)
class RewardJudge:
    """A classifier as the source of rewards: a success replaces the environment's reward."""

    probability: SuccessProbability
    threshold: float = 0.5
    success_reward: float = 1.0
    terminate_on_success: bool = True

    def __call__(self, step: EnvStep) -> EnvStep:
        """Return the step with the classifier's verdict."""
        success = self.probability(step.observation) > self.threshold
        info = replace(step.info, success=success)
        if not success:
            return step._replace(info=info)
        return step._replace(
            info=info,
            reward=self.success_reward,
            terminated=step.terminated or self.terminate_on_success,
        )


class ProcessedEnv:
    """An environment whose observations, rewards and ends its processors change."""

    def __init__(
        self,
        env: OnlineEnv,
        settings: EnvProcessorSettings,
        probability: SuccessProbability | None = None,
    ) -> None:
        """Add the processors of ``settings``; ``probability`` is its reward classifier."""
        self._env = env
        self._processors = _observation_processors(env, settings)
        features = dict(env.features)
        for processor in self._processors:
            features = processor.features(features)
        self.features: Mapping[str, Feature] = features
        limit_s = settings.reset.control_time_s
        self._max_steps = None if limit_s is None else int(limit_s * env.fps)
        self._penalty, self._gripper = _gripper_penalty(env, settings)
        self._judge = None if probability is None else _judge(probability, settings)
        self._steps = 0

    @property
    def inner(self) -> OnlineEnv:
        """The environment without processors."""
        return self._env

    @property
    def action(self) -> ActionSpec:
        """The environment's actions."""
        return self._env.action

    @property
    def fps(self) -> int:
        """Steps per second."""
        return self._env.fps

    @property
    def task(self) -> str:
        """Language instruction."""
        return self._env.task

    @property
    def start(self) -> str | None:
        """Where the episode started."""
        return self._env.start

    def reset(self, seed: int) -> Observation:
        """Start the episode that ``seed`` determines."""
        observation = self._env.reset(seed)
        for processor in self._processors:
            processor.reset()
        self._steps = 0
        return self._observed(observation)

    def step(self, action: Array) -> EnvStep:
        """Execute ``action``."""
        step = self._env.step(action)
        self._steps += 1
        step = step._replace(observation=self._observed(step.observation))
        if self._max_steps is not None and self._steps >= self._max_steps:
            step = step._replace(truncated=True)
        if self._penalty is not None and self._gripper is not None:
            gripper = self._gripper
            penalty = self._penalty(gripper.gripper_position(), gripper.gripper_command())
            step = step._replace(info=replace(step.info, discrete_penalty=penalty))
        return step if self._judge is None else self._judge(step)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _observed(self, observation: Observation) -> Observation:
        for processor in self._processors:
            observation = processor(observation)
        return observation


def _observation_processors(
    env: OnlineEnv, settings: EnvProcessorSettings
) -> list[ObservationProcessor]:
    found: list[ObservationProcessor] = []
    wants, images = settings.observation, settings.image_preprocessing
    if wants.add_joint_velocity_to_observation:
        if STATE not in env.features:
            raise UsageError(
                "--processor.observation.add_joint_velocity_to_observation needs "
                f"{STATE}, which the environment does not have",
                code="rl.unknown-observation",
            )
        found.append(JointVelocity(1 / env.fps))
    if wants.add_current_to_observation:
        if not isinstance(env, CurrentSensor):
            raise UsageError(
                "--processor.observation.add_current_to_observation needs a robot that measures "
                "motor currents",
                code="rl.no-motor-currents",
            )
        found.append(MotorCurrents(env, len(env.motor_currents())))
    if images.crop_params_dict or images.resize_size:
        crops = {
            key: (top, left, height, width)
            for key, (top, left, height, width) in (images.crop_params_dict or {}).items()
        }
        size = (
            None if images.resize_size is None else (images.resize_size[0], images.resize_size[1])
        )
        found.append(CropResize(crops, size))
    return found


def _gripper_penalty(
    env: OnlineEnv, settings: EnvProcessorSettings
) -> tuple[GripperPenalty | None, GripperSensor | None]:
    if settings.max_gripper_pos is None or not settings.gripper.use_gripper:
        return None, None
    if not isinstance(env, GripperSensor):
        raise UsageError(
            "--processor.max_gripper_pos is for robots; a simulator has its own gripper penalty",
            code="rl.no-gripper-position",
        )
    return GripperPenalty(settings.gripper.gripper_penalty, settings.max_gripper_pos), env


def _judge(probability: SuccessProbability, settings: EnvProcessorSettings) -> RewardJudge:
    classifier = settings.reward_classifier
    return RewardJudge(
        probability,
        classifier.success_threshold,
        classifier.success_reward,
        settings.reset.terminate_on_success,
    )


def _with_wider_state(features: Mapping[str, Feature], extra: int) -> dict[str, Feature]:
    state = features[STATE]
    wider = replace(state, shape=(state.shape[0] + extra,), names=None)
    return {**features, STATE: wider}
