"""Makes the action source of a rollout: the robot waits for inference, or moves meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from proctor import plugins
from proctor.config.rollout import InferenceKind, InferenceSettings
from proctor.control.policy.driver import PolicyDriver, load_robot_policy
from proctor.control.policy.loop import ActionSource
from proctor.control.policy.real_time import RealTimeDriver, latency_steps
from proctor.errors import UsageError
from proctor.policies.base import PolicyConfig
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig
from proctor.robots.base import Robot, RobotObservation, Unit
from proctor.types import EpisodeSpec

_TRIES = 3


@dataclass(frozen=True)
class PreparedSource:
    """A policy that was tried on an empty observation, and how long it takes."""

    source: ActionSource
    name: str
    inference_s: float
    """The longest of a few inferences."""
    latency: int = 0
    """Control steps that the robot executes during inference; 0: it waits."""
    notes: tuple[str, ...] = ()


def prepare_source(
    policy: PolicyConfig, settings: InferenceSettings, robot: Robot, spec: EpisodeSpec
) -> PreparedSource:
    """Load the policy and try it, before the robot is connected."""
    if settings.type is InferenceKind.RTC:
        policy = _with_guidance(policy, settings)
    driver = PolicyDriver(load_robot_policy(policy, robot, spec.task))
    try:
        took = _longest_inference(driver, robot, spec)
        notes, name = driver.policy.spec.notes, driver.policy.spec.name
        if settings.type is InferenceKind.SYNC:
            return PreparedSource(driver, name, took, notes=notes)
        measured = took if settings.latency_s is None else settings.latency_s
        latency = latency_steps(measured, spec.task.fps)
        executed = _executed_steps(driver, settings.queue_threshold, latency)
        if settings.type is InferenceKind.RTC:
            driver = _reloaded(driver, policy, robot, spec, (executed, latency))
    except BaseException:
        driver.close()
        raise
    source = RealTimeDriver(driver, latency, executed)
    return PreparedSource(source, name, took, latency, notes)


def _longest_inference(driver: PolicyDriver, robot: Robot, spec: EpisodeSpec) -> float:
    empty = _empty_observation(robot)
    driver.dry_run(empty, spec)  # the first one is slower
    return max(driver.dry_run(empty, spec) for _ in range(_TRIES))


def _empty_observation(robot: Robot) -> RobotObservation:
    """Return an observation of zeros, as the robot declares it."""
    return {
        name: 0.0
        if isinstance(shape, Unit)
        else np.zeros(shape, np.uint16 if shape[2] == 1 else np.uint8)
        for name, shape in robot.observation_features.items()
    }


def _executed_steps(driver: PolicyDriver, threshold: int, latency: int) -> int:
    """Return the chunk's actions to execute: the next is requested ``threshold`` before its end."""
    chunk = driver.policy.spec.n_action_steps
    if chunk is None:
        raise UsageError(
            "a policy server decides itself how many actions a chunk has: use "
            "--inference.type=sync",
            code="policy.unknown-chunk",
        )
    if chunk <= latency:
        raise UsageError(
            f"inference takes {latency} steps, and a chunk has {chunk} actions: execute more "
            "actions per chunk (--policy.n_action_steps), lower --fps, or use "
            "--inference.type=sync",
            code="policy.latency-too-long",
        )
    return min(chunk, max(chunk - threshold, latency) + latency)


def _with_guidance(policy: PolicyConfig, settings: InferenceSettings) -> PretrainedConfig:
    """Return the policy's config with real-time chunking."""
    from proctor.policies.lerobot.checkpoint.checkpoint import config_with_overrides

    refusal = "has no real-time chunking: use --inference.type=async"
    if not isinstance(policy, PretrainedConfig):
        raise UsageError(f"--policy.type={policy.type} {refusal}", code="policy.no-guidance")
    local = plugins.find_policy(policy.type).local_checkpoint
    assert local is not None
    stored = config_with_overrides(local(policy), {})
    if not hasattr(stored, "rtc_config"):
        raise UsageError(f"--policy.path: {stored.type} {refusal}", code="policy.no-guidance")
    guided: dict[str, Any] = {**policy.overrides, "rtc_config": settings.rtc.as_rtc_config()}
    return replace(policy, overrides=guided)


def _reloaded(
    driver: PolicyDriver,
    policy: PolicyConfig,
    robot: Robot,
    spec: EpisodeSpec,
    schedule: tuple[int, int],
) -> PolicyDriver:
    """Load the policy again with its schedule: the guidance depends on it."""
    assert isinstance(policy, PretrainedConfig)
    executed, latency = schedule
    driver.close()
    timed = {**policy.overrides, "n_action_steps": executed}
    again = PolicyDriver(
        load_robot_policy(replace(policy, overrides=timed, latency_steps=latency), robot, spec.task)
    )
    try:
        again.dry_run(_empty_observation(robot), spec)
    except BaseException:
        again.close()
        raise
    return again
