"""The benchmark's scripted experts as a policy: an upper bound, and an end-to-end check."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proctor.errors import UsageError
from proctor.features import Array, Expert, Interface
from proctor.policies.base import Batch, Placement, Policy, PolicyConfig, PolicyPlugin, PolicySpec
from proctor.types import EpisodeSpec


@dataclass
class ExpertConfig(PolicyConfig):
    """Flags of the expert; it adds none."""

    type: str = "expert"


class ExpertPolicy(Policy):
    """Runs the script of each episode's task, one action at a time.

    It runs in the simulator's process: a script takes microseconds, a message to the engine more.
    """

    def __init__(self, config: ExpertConfig, interface: Interface) -> None:
        scripts = interface.scripts
        if scripts is None:
            raise UsageError(
                f"{interface.name} has no scripted expert; choose another policy",
                code="env.no-expert",
            )
        for task in scripts.tasks:
            scripts.make(task)  # refuses a task without a script before the run starts
        self.spec = PolicySpec(
            "expert", scripts.inputs, placement=Placement.WORKER, follows_expert=True
        )
        self._scripts = scripts

    def new_episode(self, spec: EpisodeSpec) -> Expert:
        """Return a fresh script for the episode's task."""
        return self._scripts.make(spec.task)

    def act(self, batch: Batch) -> Array:
        """Return the next action of each episode's script."""
        actions = []
        for row, query in enumerate(batch.queries):
            now = {key: array[row, -1] for key, array in batch.observations.items()}
            actions.append(query.state(now))
        return np.asarray(actions)[:, None]


PLUGIN = PolicyPlugin(
    config=ExpertConfig,
    make=ExpertPolicy,
    summary="the benchmark's own scripted policies",
    is_trained=False,
)
