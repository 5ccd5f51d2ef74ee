"""Drives a robot with a policy: one action per control step, from a queue of action chunks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor import plugins
from proctor.control.robot_features import ChannelMapping, robot_interface
from proctor.engine.chunks import blame_policy, checked_chunks
from proctor.errors import RobotError, UsageError
from proctor.evaluation.preparing import make_policy
from proctor.features import Array, Feature, Interface, Observation
from proctor.policies.base import Batch, Policy, PolicyConfig, Query
from proctor.policies.compatibility import check_instructions, check_offered
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig
from proctor.policies.lerobot.checkpoint.trained_channels import (
    UNKNOWN_CHANNELS,
    TrainedChannels,
    trained_channels,
)
from proctor.policies.lerobot.config.config import CheckpointConfig
from proctor.robots.base import Action, Robot, RobotObservation
from proctor.types import EpisodeSpec, Task


@dataclass(frozen=True)
class RobotPolicy:
    """A policy that was made for a robot and matches its channels, units and cameras."""

    policy: Policy
    interface: Interface
    channels: ChannelMapping

    @property
    def features(self) -> dict[str, Feature]:
        """The features that the policy takes."""
        return {key: self.interface.features[key] for key in self.policy.spec.inputs}


def load_robot_policy(config: PolicyConfig, robot: Robot, task: Task) -> RobotPolicy:
    """Make the policy of ``config`` for ``robot`` and ``task``. The robot need not be connected."""
    if isinstance(config, CheckpointConfig):
        raise UsageError(
            f"--policy.type={config.type} has random weights, and {robot.name} would move by them; "
            "give a trained checkpoint with --policy.path=DIR",
            code="policy.untrained",
        )
    plugin = plugins.find_policy(config.type)
    if plugin.check_config is not None:
        plugin.check_config(config)
    interface = robot_interface(robot, task.fps)
    channels = ChannelMapping(robot, _trained_channels(config))
    policy = make_policy(config, interface)
    try:
        check_offered(policy.spec.inputs, interface, f"policy {policy.spec.name!r}")
        if policy.spec.language_conditioned:
            check_instructions(policy.spec.name, robot.name, [task])
    except BaseException:
        policy.close()
        raise
    return RobotPolicy(policy, interface, channels)


def _trained_channels(config: PolicyConfig) -> TrainedChannels:
    if not isinstance(config, PretrainedConfig):
        return UNKNOWN_CHANNELS
    local = plugins.find_policy(config.type).local_checkpoint
    assert local is not None
    return trained_channels(local(config))


class PolicyDriver:
    """Asks a policy for actions, step by step, in one episode at a time.

    Inference is synchronous: the step that needs a new chunk waits for it. ``infer_s`` holds how
    long each inference of the episode took.
    """

    def __init__(self, robot_policy: RobotPolicy) -> None:
        self.policy = robot_policy.policy
        self.channels = robot_policy.channels
        self._features = robot_policy.features
        self._action = robot_policy.interface.action
        self._history: deque[Observation] = deque(maxlen=self.policy.spec.n_obs_steps)
        self._queue: deque[Array] = deque()
        self._spec: EpisodeSpec | None = None
        self._state: Any = None
        self._step = 0
        self.infer_s: list[float] = []

    def start_episode(self, spec: EpisodeSpec) -> None:
        """Begin an episode; an unfinished one is ended first."""
        self.end_episode()
        with blame_policy(self.policy, f"at the beginning of {spec}"):
            self._state = self.policy.new_episode(spec)
        self._spec, self._step, self.infer_s = spec, 0, []
        self._history.clear()
        self._queue.clear()

    def act(self, observation: RobotObservation) -> Action:
        """Return the action of this control step; call it once for every step."""
        self.observe(observation)
        if not self._queue:
            self._queue.extend(self.answer(self.request()))
        self.count_step()
        return self.channels.action(self._queue.popleft())

    def observe(self, observation: RobotObservation) -> None:
        """Add an observation to the history; ``act`` does it too."""
        seen = self.channels.features(observation, list(self._features))
        _check_shapes(seen, self._features)
        if not self._history:
            self._history.extend([seen] * self.policy.spec.n_obs_steps)
        else:
            self._history.append(seen)

    def request(self) -> Batch:
        """Return the policy's query for the newest observations."""
        assert self._spec is not None, "start_episode comes first"
        return Batch([Query(self._spec, self._step, self._state)], _stacked(self._history))

    def answer(self, batch: Batch) -> Array:
        """Return the policy's chunk [T, action size]; another thread may call it."""
        start = time.perf_counter()
        chunk: Array = checked_chunks(self.policy, batch, self._action)[0]
        self.infer_s.append(time.perf_counter() - start)
        return chunk

    def count_step(self) -> None:
        """Note that a control step is over; ``act`` does it too."""
        self._step += 1

    def dry_run(self, observation: RobotObservation, spec: EpisodeSpec) -> float:
        """Ask the policy once and command nothing; return the seconds it took.

        It finds faults of policy, cameras and server before anything moves, and the first inference
        of an episode is not the slow first one of the network.
        """
        for _ in self.policy.warm_up(self._features, 1):
            pass
        self.start_episode(spec)
        try:
            self.observe(observation)
            self.answer(self.request())
            return self.infer_s[-1]
        finally:
            self.end_episode()

    def end_episode(self) -> None:
        """End the episode; without one, nothing happens."""
        if self._spec is None:
            return
        spec, state = self._spec, self._state
        self._spec = self._state = None
        with blame_policy(self.policy, f"at the end of {spec}"):
            self.policy.end_episode(state)

    def close(self) -> None:
        """End the episode and release the policy."""
        try:
            self.end_episode()
        finally:
            self.policy.close()


def _stacked(history: Sequence[Observation]) -> dict[str, Array]:
    """Return [1, n_obs_steps, ...] of every feature, oldest first."""
    return {key: np.stack([seen[key] for seen in history])[None] for key in history[-1]}


def _check_shapes(seen: Observation, features: dict[str, Feature]) -> None:
    for key, feature in features.items():
        if seen[key].shape != feature.shape:
            raise RobotError(
                f"{key} has shape {seen[key].shape}, the robot declares {feature.shape}",
                code="robot.wrong-image-shape",
            )
