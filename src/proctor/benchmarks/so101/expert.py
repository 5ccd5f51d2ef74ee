"""Scripted expert: it picks the cube up from above and drops it into the bin.

The expert has no memory. It derives its phase from the observation, so that it also knows what to
do after a disturbance, or in a state into which another policy came.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proctor.benchmarks.so101.kinematics import (
    CHANNELS,
    GRIPPER,
    JOINT_NAMES,
    from_units,
    joint_frames,
    reach_down,
    to_units,
)
from proctor.benchmarks.so101.scene import BIN_HALF_M, BIN_HEIGHT_M, CUBE_HALF_M
from proctor.features import ENVIRONMENT_STATE, STATE, Array, Observation

_TOOL_M = 0.0981274
"""From the hand's frame to the tool, along the hand."""
_CENTRE_M = 0.0125
"""Where the cube's centre is when the fingers stand around it, from the hand's axis."""
_HOVER_M, _GRASP_M, _CARRY_M = 0.065, 0.0145, 0.09
"""Heights of the tool: above the cube, around it, and on the way to the bin."""
_CARRY_PITCH = np.radians(65.0)
_OPEN, _CLOSED = 65.0, 5.0
"""Gripper values; so wide that a policy may miss the cube's centre by 9 mm and still grasp it."""
_HELD_BELOW = 22.0
"""Gripper value below which a cube between the fingers is held; its width stops them at 19."""
_FAST, _SLOW, _GRIP = 2.5, 1.5, 4.0
"""Largest change of a target in a step, in degrees or, for the gripper, percent."""


class Goal(NamedTuple):
    """What the expert wants in a phase: a pose of the hand, the gripper, and how fast."""

    position: Array
    """Of the cube's centre between the fingers, with the tool's height, in metres."""
    yaw: float
    gripper: float
    speed: float
    pitch: float = np.pi / 2
    """Angle of the hand below the horizontal, in radians."""


class So101Expert:
    """Expert policy: observation in LeRobot's units -> action in LeRobot's units, float32 [6]."""

    def __call__(self, observation: Observation) -> Array:
        """Return the targets of the next 30th of a second."""
        state = np.asarray(observation[STATE], dtype=np.float64)
        cube, yaw, bin_xy = _split(np.asarray(observation[ENVIRONMENT_STATE], dtype=np.float64))
        hand = _Hand(state)
        goal = _choose(hand, cube, yaw, bin_xy)
        return _step_towards(state, goal)


class _Hand:
    """Where the hand is, from the joints."""

    def __init__(self, state: Array) -> None:
        angles = from_units(state)
        frame = joint_frames(np.array([angles[name] for name in JOINT_NAMES[:5]]))[-1]
        self.yaw = float(np.arctan2(frame[1, 0], frame[0, 0]))
        self.centre = frame[:3, 3] - _TOOL_M * frame[:3, 2] + _CENTRE_M * frame[:3, 0]
        """The point between the fingers."""
        self.gripper = float(state[CHANNELS.index(f"{GRIPPER}.pos")])


def _split(scene: Array) -> tuple[Array, float, Array]:
    """Return the cube's position, its yaw in radians, and the bin's x and y."""
    return scene[:3], float(np.radians(scene[3])), scene[4:6]


def _choose(hand: _Hand, cube: Array, cube_yaw: float, bin_xy: Array) -> Goal:
    """Return the goal of the phase."""
    over_bin = np.abs(cube[:2] - bin_xy).max() < BIN_HALF_M - CUBE_HALF_M
    held = hand.gripper < _HELD_BELOW and np.linalg.norm(cube - hand.centre) < 0.02
    if over_bin and (cube[2] < BIN_HEIGHT_M or not held):
        return _over_bin(bin_xy, _OPEN)
    if held:
        return _carry(hand, bin_xy)
    return _grasp(hand, cube, cube_yaw)


def _carry(hand: _Hand, bin_xy: Array) -> Goal:
    """Lift the cube, bring it over the bin, let go."""
    if np.abs(hand.centre[:2] - bin_xy).max() < 0.02:
        return _over_bin(bin_xy, _OPEN)
    if hand.centre[2] < _HOVER_M - 0.01:
        return Goal(_at(hand.centre[:2], _CARRY_M), hand.yaw, _CLOSED, _SLOW)
    return _over_bin(bin_xy, _CLOSED)


def _over_bin(bin_xy: Array, gripper: float) -> Goal:
    """Hold the hand over the bin; tilted, since the wrist does not bend further up there."""
    return Goal(_at(bin_xy, _CARRY_M), 0.0, gripper, _FAST, _CARRY_PITCH)


def _grasp(hand: _Hand, cube: Array, cube_yaw: float) -> Goal:
    """Move above the cube, descend around it, close the gripper."""
    yaw = _nearest_turn(cube_yaw, 0.0)
    offset = float(np.linalg.norm(cube[:2] - hand.centre[:2]))
    turned = abs(np.sin(2 * (hand.yaw - cube_yaw))) / 2
    low = hand.centre[2] < _GRASP_M + 0.005
    if offset < (0.016 if low else 0.01) and turned < 0.15:
        gripper = _CLOSED if low else _OPEN
        return Goal(_at(cube[:2], _GRASP_M), yaw, gripper, _SLOW)
    if hand.centre[2] < _HOVER_M - 0.02 and offset > 0.016:
        return Goal(_at(hand.centre[:2], _HOVER_M), hand.yaw, _OPEN, _FAST)
    return Goal(_at(cube[:2], _HOVER_M), yaw, _OPEN, _FAST)


def _at(xy: Array, height: float) -> Array:
    return np.array([xy[0], xy[1], height])


def _nearest_turn(yaw: float, reference: float) -> float:
    """Return ``yaw`` plus the quarter turns that bring it nearest to ``reference``."""
    return yaw + np.pi / 2 * round((reference - yaw) / (np.pi / 2))


def _step_towards(state: Array, goal: Goal) -> Array:
    """Return targets one bounded step from ``state`` to the goal; all joints arrive together."""
    axis = goal.position - _CENTRE_M * np.array([np.cos(goal.yaw), np.sin(goal.yaw), 0.0])
    angles = reach_down(axis, goal.yaw, goal.pitch)
    wanted = to_units(dict(zip(JOINT_NAMES, (*angles, 0.0), strict=True))).astype(np.float64)
    wanted[-1] = goal.gripper
    change = wanted - state
    largest = np.abs(change[:-1]).max()
    change[:-1] *= min(1.0, goal.speed / largest) if largest > 0 else 1.0
    change[-1] = np.clip(change[-1], -_GRIP, _GRIP)
    return (state + change).astype(np.float32)
