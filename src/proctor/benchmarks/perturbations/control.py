"""Perturbations of the robot: noise on states and actions, delayed actions, another initial pose.

Their units are the benchmark's (``RobotControl``): a level means the same for every robot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from proctor.benchmarks.base import Benchmark
from proctor.benchmarks.perturbations.base import ActivePerturbation, Dimension, PerturbedEpisode
from proctor.features import Array, FeatureKind

_NO_CONTROL = "Proctor does not know the units of its actions"
_JOINT_STEPS = 20
"""Control steps in which the joints of an absolute controller reach their other initial pose."""

_SETTLE_STEPS = 10
"""Control steps in which the hand comes to rest at its other initial pose."""


class StateNoise(Dimension):
    """Sensor noise: independent Gaussian noise on every number of the state, at every step."""

    name = "state_noise"
    levels = (1.0, 2.0, 4.0)
    unit = "standard deviation, in the benchmark's units of state noise"
    noticed_in = frozenset({FeatureKind.STATE, FeatureKind.ENV})

    def unsupported(self, benchmark: Benchmark) -> str | None:
        """Refuse a benchmark whose states have no known units."""
        known = self.noticed_keys(benchmark)
        return None if known else "Proctor does not know the units of its states, or it has none"

    def noticed_keys(self, benchmark: Benchmark) -> frozenset[str]:
        """Return the states with a unit of noise."""
        control = benchmark.robot_control
        return frozenset(() if control is None else control.state_noise) & set(benchmark.features())

    def begin(self, episode: PerturbedEpisode) -> ActivePerturbation:
        """Return noise of the level's standard deviation."""
        return _NoisyState(episode, self.strength(episode.level))


class _NoisyState(ActivePerturbation):
    def __init__(self, episode: PerturbedEpisode, scale: float) -> None:
        assert episode.control is not None
        self._episode = episode
        self._sigma = {
            key: scale * np.asarray(unit) for key, unit in episode.control.state_noise.items()
        }

    def change_observation(self, key: str, value: Array, step: int) -> Array:
        if key not in self._sigma:
            return value
        noise = self._sigma[key] * self._episode.rng(key, step).standard_normal(value.shape)
        return (value + noise).astype(value.dtype)


class _ActionDimension(Dimension):
    def unsupported(self, benchmark: Benchmark) -> str | None:
        """Refuse a benchmark whose actions have no known units."""
        return _NO_CONTROL if benchmark.robot_control is None else None


class ActionNoise(_ActionDimension):
    """Actuator noise: independent Gaussian noise on every number of every executed action."""

    name = "action_noise"
    levels = (1.0, 2.0, 4.0)
    unit = "standard deviation, in the benchmark's units of action noise"

    def begin(self, episode: PerturbedEpisode) -> ActivePerturbation:
        """Return noise of the level's standard deviation."""
        return _NoisyActions(episode, self.strength(episode.level))


class _NoisyActions(ActivePerturbation):
    def __init__(self, episode: PerturbedEpisode, scale: float) -> None:
        assert episode.control is not None
        self._episode = episode
        self._sigma = scale * np.asarray(episode.control.action_noise)

    def change_action(self, action: Array, step: int) -> Array:
        if self._episode.action.clipped:  # a command beyond the range must not hide the noise
            action = np.clip(action, *self._episode.action.bounds)
        noise = self._sigma * self._episode.rng(step).standard_normal(action.shape)
        return (action + noise).astype(action.dtype)


class Delay(_ActionDimension):
    """Actions reach the robot late; until the first one does, the robot holds its pose."""

    name = "delay"
    levels = (0.1, 0.2, 0.4)
    unit = "seconds, in whole control steps"

    def begin(self, episode: PerturbedEpisode) -> ActivePerturbation:
        """Return a delay of the level's number of control steps, at least one."""
        assert episode.hold is not None
        steps = max(1, int(self.strength(episode.level) * episode.fps + 0.5))
        return _DelayedActions(episode.hold, steps)


class _DelayedActions(ActivePerturbation):
    def __init__(self, hold: Array, steps: int) -> None:
        self._pending = deque([hold] * steps)

    def change_action(self, action: Array, step: int) -> Array:
        self._pending.append(np.array(action))
        return self._pending.popleft().astype(action.dtype)


class RobotPose(_ActionDimension):
    """The robot starts elsewhere: it is driven there before the episode, and objects stay.

    A controller of the hand moves it in a random direction, never downwards. A controller of joints
    turns each one by a random angle up to the level's.
    """

    name = "robot_pose"
    levels = ((0.02, 2.5), (0.04, 5.0), (0.08, 10.0))
    unit = "metres of the hand, or degrees of each joint"

    def unsupported(self, benchmark: Benchmark) -> str | None:
        """Refuse a benchmark whose robot cannot be driven to another initial pose."""
        control = benchmark.robot_control
        if control is None:
            return _NO_CONTROL
        movable = control.hand_step_m is not None or control.joints
        return None if movable else "its robot has no initial pose to change"

    def begin(self, episode: PerturbedEpisode) -> ActivePerturbation:
        """Return the actions to the other initial pose."""
        assert episode.control is not None
        assert episode.hold is not None
        distance_m, degrees = self.strength(episode.level)
        rng, control = episode.rng(), episode.control
        if control.hand_step_m is not None:
            direction = rng.standard_normal(3)
            direction[2] = abs(direction[2])
            steps = int(np.ceil(distance_m / control.hand_step_m))
            motion = direction / np.linalg.norm(direction)
            target = episode.hold.copy()
            target[:3] += motion * distance_m / (control.hand_step_m * steps)
            return _OtherPose([target] * steps + [episode.hold] * _SETTLE_STEPS)
        target = episode.hold.copy()
        angles = rng.uniform(-degrees, degrees, len(control.joints))
        target[list(control.joints)] += angles * control.degree
        return _OtherPose([target] * _JOINT_STEPS)


class _OtherPose(ActivePerturbation):
    def __init__(self, actions: Sequence[Array]) -> None:
        self._actions = actions

    def first_actions(self) -> Sequence[Array]:
        return self._actions
