"""The benchmark's own scripted policies: an upper reference, and a check of the whole machinery."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proctor.errors import UsageError
from proctor.features import Array, Expert, Interface
from proctor.policies.base import Batch, Placement, Policy, PolicyConfig, PolicyPlugin, PolicySpec
from proctor.types import EpisodeSpec


@dataclass
class ExpertConfig(PolicyConfig):
    """Flags of the expert: none of its own."""

    type: str = "expert"


class ExpertPolicy(Policy):
    """Asks the script of each episode's task, one action at a time.

    Runs beside the simulator: a script costs a few microseconds, a message to the engine many.
    """

    def __init__(self, config: ExpertConfig, interface: Interface) -> None:
        scripts = interface.scripts
        if scripts is None:
            raise UsageError(f"{interface.name} has no scripted expert; choose another policy")
        for task in scripts.tasks:
            scripts.make(task)  # a task without a script is refused before anything starts
        self.spec = PolicySpec("expert", scripts.inputs, placement=Placement.WORKER)
        self._scripts = scripts

    def new_episode(self, spec: EpisodeSpec) -> Expert:
        """Return a fresh script for the episode's task."""
        return self._scripts.make(spec.task)

    def act(self, batch: Batch) -> Array:
        """Return one action for each episode, by its script."""
        actions = []
        for row, query in enumerate(batch.queries):
            now = {key: array[row, -1] for key, array in batch.observations.items()}
            actions.append(query.state(now))
        return np.asarray(actions)[:, None]


PLUGIN = PolicyPlugin(
    config=ExpertConfig, make=ExpertPolicy, summary="the benchmark's own scripted policies"
)
