"""A robot's channels and cameras as a policy's features, and action vectors as channels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from proctor.errors import RobotError, SpecMismatch, UsageError
from proctor.features import (
    ACTION,
    ENVIRONMENT_STATE,
    IMAGES,
    STATE,
    ActionSpec,
    Array,
    Feature,
    FeatureKind,
    Interface,
    Observation,
)
from proctor.policies.lerobot.checkpoint.trained_channels import UNKNOWN_CHANNELS, TrainedChannels
from proctor.robots.base import Action, Robot, RobotObservation, Unit


def robot_interface(robot: Robot, fps: int) -> Interface:
    """Return the observations and actions of a robot, as a policy is built for them.

    Works before the robot is connected. Raises UsageError if the robot has no channel to command.
    """
    if not robot.action_features:
        raise UsageError(f"{robot.name} has no channels to command", code="robot.no-channels")
    channels = state_channels(robot)
    features: dict[str, Feature] = {}
    if channels:
        features[STATE] = Feature(FeatureKind.STATE, (len(channels),), "float32", tuple(channels))
    if names := scene_state_names(robot):
        features[ENVIRONMENT_STATE] = Feature(FeatureKind.ENV, (len(names),), "float32", names)
    for camera, shape in camera_shapes(robot).items():
        dtype = "uint16" if shape[2] == 1 else "uint8"
        features[f"{IMAGES}{camera}"] = Feature(FeatureKind.VISUAL, shape, dtype)
    limits = [robot.limits.get(name, (-math.inf, math.inf)) for name in robot.action_features]
    bounded = any(math.isfinite(end) for pair in limits for end in pair)
    action = ActionSpec(
        len(robot.action_features),
        low=tuple(low for low, _ in limits) if bounded else None,
        high=tuple(high for _, high in limits) if bounded else None,
    )
    return Interface(robot.name, features, action, fps)


def state_channels(robot: Robot) -> dict[str, Unit]:
    """Return the observed channels and their units, in order."""
    return {
        name: unit for name, unit in robot.observation_features.items() if isinstance(unit, Unit)
    }


def camera_shapes(robot: Robot) -> dict[str, tuple[int, int, int]]:
    """Return the shape of every camera's images: height, width, channels."""
    return {
        name: shape
        for name, shape in robot.observation_features.items()
        if not isinstance(shape, Unit)
    }


def scene_state_names(robot: Robot) -> tuple[str, ...]:
    """Return the names of a simulated scene's state, observed if there are no cameras.

    With cameras a policy would take it as one more input, and the real robot has none.
    """
    if robot.scene is None or camera_shapes(robot):
        return ()
    return tuple(robot.scene.state_names)


class ChannelMapping:
    """Converts between a robot's dicts of channels and a policy's vectors, by name.

    The policy's order is that of its training dataset, where known; otherwise the robot's.
    """

    def __init__(self, robot: Robot, trained: TrainedChannels = UNKNOWN_CHANNELS) -> None:
        """Match the channels of both."""
        self._state = _matched(robot.name, STATE, state_channels(robot), trained)
        self._action = _matched(robot.name, ACTION, robot.action_features, trained)
        self._scene = robot.scene

    def features(self, observation: RobotObservation, keys: Sequence[str]) -> Observation:
        """Return the features ``keys`` of an observation of robot and simulated scene."""
        return {key: self._feature(observation, key) for key in keys}

    def _feature(self, observation: RobotObservation, key: str) -> Array:
        if key == ENVIRONMENT_STATE:
            assert self._scene is not None, "robot_interface offers it for simulated scenes only"
            return self._scene.state()
        if key != STATE:
            image: Array = observation[key.removeprefix(IMAGES)]
            return image
        state = np.array([observation[name] for name in self._state], np.float32)
        if not np.isfinite(state).all():
            bad = self._state[int(np.flatnonzero(~np.isfinite(state))[0])]
            raise RobotError(f"{bad} reads {observation[bad]}", code="robot.not-finite")
        return state

    def action(self, vector: Array) -> Action:
        """Return a policy's action vector as channels, in the robot's units."""
        return {name: float(value) for name, value in zip(self._action, vector, strict=True)}

    def vector(self, action: Mapping[str, float]) -> Array:
        """Return an action's channels as the policy's vector, float32 [action size]."""
        return np.array([action[name] for name in self._action], np.float32)


def _matched(
    robot: str, key: str, channels: Mapping[str, Unit], trained: TrainedChannels
) -> tuple[str, ...]:
    """Return the channels in the policy's order."""
    names = trained.names.get(key, tuple(channels))
    if sorted(names) != sorted(channels):
        raise SpecMismatch(
            f"{key}: the policy was trained on {', '.join(names)}, {robot} has "
            f"{', '.join(channels)}; choose the robot that the dataset was recorded with",
            code="robot.channel-mismatch",
        )
    stated: dict[str, Any] = dict(zip(names, trained.units.get(key, ()), strict=False))
    for name, unit in stated.items():
        if unit != channels[name].value:
            raise SpecMismatch(
                f"{key}: the policy was trained with {name} in {unit}, {robot} uses "
                f"{channels[name].value}; set the robot's units (as --robot.use_degrees) to match",
                code="robot.unit-mismatch",
            )
    return names
