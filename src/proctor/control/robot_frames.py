"""Dataset features of a robot, and the frames of its control loop.

The features are LeRobot's, in its order: ``action``, ``observation.state``, then the cameras. A
simulated robot without cameras also has its scene's state, ``observation.environment_state``. The
extras follow. Their names begin with ``extra.``: LeRobot and Proctor take every ``observation*``
feature as a policy's input and every ``action*`` feature as its output, and extras are neither.

    extra.wished_action      the action of the teleoperator or policy, before the robot's limits
    extra.time_s             time of the observation since the episode's start, on the robot's clock
    extra.repeated.<camera>  whether the camera had no newer image than in the frame before
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.control.loop.units import units_block
from proctor.control.robot_features import camera_shapes, scene_state_names, state_channels
from proctor.errors import RobotError
from proctor.features import ACTION, ENVIRONMENT_STATE, IMAGES, STATE, Array
from proctor.robots.base import Action, Robot, RobotObservation, Unit

WISHED_ACTION = "extra.wished_action"
TIME = "extra.time_s"
REPEATED = "extra.repeated."
_AXES = ["height", "width", "channels"]


def robot_features(robot: Robot, *, video: bool = True) -> dict[str, dict[str, Any]]:
    """Return the entries of meta/info.json for a recording of ``robot``."""
    cameras = camera_shapes(robot)
    features = {
        ACTION: _vector(robot.action_features),
        STATE: _vector(state_channels(robot)),
    }
    if names := scene_state_names(robot):
        features[ENVIRONMENT_STATE] = {
            "dtype": "float32",
            "shape": [len(names)],
            "names": list(names),
        }
    for name, shape in cameras.items():
        features[f"{IMAGES}{name}"] = _image(shape, "video" if video else "image")
    features[WISHED_ACTION] = _vector(robot.action_features)
    features[TIME] = {"dtype": "float64", "shape": [1], "names": None}
    for name in cameras:
        features[f"{REPEATED}{name}"] = {"dtype": "bool", "shape": [1], "names": None}
    return features


def _vector(channels: Mapping[str, Unit]) -> dict[str, Any]:
    return {
        "dtype": "float32",
        "shape": [len(channels)],
        "names": list(channels),
        "info": units_block(list(channels.values())),
    }


def _image(shape: tuple[int, int, int], stored_as: str) -> dict[str, Any]:
    is_depth = shape[2] == 1
    depth = {"info": {"is_depth_map": True, "depth_unit": "mm"}} if is_depth else {}
    stored = "video" if is_depth else stored_as  # depth is stored as video only
    return {"dtype": stored, "shape": list(shape), "names": list(_AXES), **depth}


@dataclass(frozen=True)
class ControlStep:
    """One tick of a control loop: what was observed, wished and sent."""

    observation: RobotObservation
    requested_action: Action
    sent: Action
    time_s: float
    """Time of the observation since the episode's start."""
    scene_state: Array | None = None
    """State of a simulated scene, float32 [names]."""


class FrameBuilder:
    """Makes the frames of one episode; it remembers the last images to mark repeats."""

    def __init__(self, robot: Robot, keys: Collection[str] | None = None) -> None:
        """Make frames with the features ``keys``; None: with all features of ``robot``."""
        self._keys = keys
        self._action = list(robot.action_features)
        self._state = list(state_channels(robot))
        self._cameras = list(camera_shapes(robot))
        self._scene = bool(scene_state_names(robot))
        self._last: dict[str, Any] = {}
        self.repeats = dict.fromkeys(self._cameras, 0)
        """Camera -> frames of this episode that repeat an image."""

    def frame(self, tick: ControlStep) -> dict[str, Any]:
        """Return the frame of one tick.

        A camera without a newer image returns the same array again.
        """
        seen = tick.observation
        frame: dict[str, Any] = {
            ACTION: _values(self._action, tick.sent),
            STATE: _values(self._state, seen),
            WISHED_ACTION: _values(self._action, {**tick.sent, **tick.requested_action}),
            TIME: np.array([tick.time_s], np.float64),
        }
        if self._scene:
            frame[ENVIRONMENT_STATE] = tick.scene_state
        for name in self._cameras:
            image = seen[name]
            repeated = image is self._last.get(name)
            self._last[name] = image
            self.repeats[name] += repeated
            frame[f"{IMAGES}{name}"] = image
            frame[f"{REPEATED}{name}"] = np.array([repeated])
        if self._keys is not None:
            frame = {key: value for key, value in frame.items() if key in self._keys}
        return frame


def _values(names: list[str], values: Mapping[str, Any]) -> Array:
    """Return the values of ``names`` as one float32 vector."""
    missing = [name for name in names if name not in values]
    if missing:
        raise RobotError(
            f"the robot has a channel {missing[0]} and got no value for it",
            code="robot.missing-channel",
        )
    return np.array([values[name] for name in names], np.float32)
