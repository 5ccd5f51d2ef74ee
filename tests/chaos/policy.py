"""A policy that depends on observations, adds noise, and fails on demand."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from proctor.features import Array, Interface
from proctor.policies.base import Batch, Placement, Policy, PolicyConfig, PolicyPlugin, PolicySpec
from proctor.types import EpisodeSpec


class PolicyFault(Enum):
    """How the policy fails."""

    RAISE = "raise"
    EXIT = "exit"
    NAN = "nan"
    SHAPE = "shape"
    NOTHING = "nothing"
    TEXT = "text"


@dataclass
class ChaosConfig(PolicyConfig):
    """Where and how to fail, and the folder that records that it did."""

    fault: PolicyFault | None = None
    fault_at: str = ""  # TASK/EPISODE/STEP
    break_once_in: str = ""


class ChaosPolicy(Policy):
    """Moves towards the goal with noise: actions depend on observations and random numbers."""

    spec = PolicySpec("chaos", ("observation.environment_state",), n_obs_steps=2, n_action_steps=3)

    def __init__(self, config: ChaosConfig, interface: Interface) -> None:
        self._config = config

    def new_episode(self, spec: EpisodeSpec) -> np.random.Generator:
        return np.random.default_rng([spec.seed, spec.task.task_id, spec.index])

    def act(self, batch: Batch) -> Any:
        world = batch.observations["observation.environment_state"]  # [B, 2, (point, goal)]
        towards = 8 * (world[:, -1, 2:] - world[:, -1, :2]) + (world[:, 0, :2] - world[:, 1, :2])
        noise = [query.state.normal(0, 0.3, (3, 2)) for query in batch.queries]
        chunks = np.clip(towards[:, None] + np.array(noise), -1, 1).astype(np.float32)
        for query in batch.queries:
            place = f"{query.spec.task.task_id}/{query.spec.index}/{query.step}"
            if place == self._config.fault_at and self._first_time(place):
                return self._broken(chunks)
        return chunks

    def _first_time(self, place: str) -> bool:
        mark = Path(self._config.break_once_in, "policy-" + place.replace("/", "-"))
        if mark.exists():
            return False
        mark.touch()
        return True

    def _broken(self, chunks: Array) -> Any:
        match self._config.fault:
            case PolicyFault.RAISE:
                raise ValueError("the weights\nare gone")
            case PolicyFault.EXIT:
                sys.exit(7)
            case PolicyFault.NAN:
                return np.where(chunks > 0, np.nan, chunks)
            case PolicyFault.SHAPE:
                return chunks[:, :1]
            case PolicyFault.TEXT:
                return "left, then right"
        return None


class ChaosPolicyInWorker(ChaosPolicy):
    """The same policy in each worker."""

    spec = replace(ChaosPolicy.spec, placement=Placement.WORKER)


ENGINE = PolicyPlugin(ChaosConfig, ChaosPolicy, "breaks on demand, in the engine")
WORKER = PolicyPlugin(ChaosConfig, ChaosPolicyInWorker, "breaks on demand, in each worker")
