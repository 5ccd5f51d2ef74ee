"""A registered environment in another interpreter: ``--env.type=gym --env.python=PATH``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from proctor.benchmarks.base import Sim
from proctor.benchmarks.gym.benchmark import GymAdapter, GymAdapterConfig
from proctor.benchmarks.gym.probe import EnvFacts, env_facts
from proctor.benchmarks.isolated.benchmark import IsolatedEnvironments, worker_interpreter
from proctor.benchmarks.isolated.launch import Launch
from proctor.benchmarks.isolated.world_process import one_shot
from proctor.types import Task
from proctor_worker.gym_env.carryover import Carryover
from proctor_worker.gym_env.inspection import EnvRecord, TaskRecord
from proctor_worker.gym_env.opener import GymOpener


@dataclass(frozen=True)
class IsolatedEnv:
    """The facts of an environment in another interpreter, and how its process is started."""

    launch: Launch
    facts: EnvFacts
    interpreter: dict[str, Any]


def probe_elsewhere(config: GymAdapterConfig, env_id: str) -> IsolatedEnv:
    """Inspect the environment in the interpreter of the config."""
    asked = {
        "id": env_id,
        "kwargs": config.kwargs,
        "success": config.success,
        "episode_length": config.episode_length,
    }
    launch = Launch("proctor_worker.worlds.gym:make", asked, config.python, config.command)
    with one_shot(launch, {}) as process:
        header = process.request("describe")[0]
    found = header["description"]
    record = EnvRecord(
        tasks=tuple(TaskRecord(**task) for task in found["tasks"]),
        features=found["features"],
        action=found["action"],
        distributions=tuple(found["distributions"]),
        carryover=Carryover(found["carryover"]),
        notes=tuple(found["notes"]),
    )
    asked = {**asked, "carryover": found["carryover"]}
    return IsolatedEnv(
        replace(launch, config=asked), env_facts(record, {}), dict(header["interpreter"])
    )


class IsolatedGym(GymAdapter):
    """Benchmark of one registered environment whose simulators run in another interpreter."""

    preload: tuple[str, ...] = ()

    def __init__(self, config: GymAdapterConfig, opener: GymOpener, found: IsolatedEnv) -> None:
        super().__init__("gym", config, opener, found.facts)
        self.distributions = ()  # those of the other interpreter are in the protocol
        self._interpreter = found.interpreter
        self.worker_interpreter = worker_interpreter(
            found.launch, self.features(), found.interpreter
        )
        self._worlds = IsolatedEnvironments(found.launch, self.features())

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode, and what the other interpreter has."""
        return {**super().protocol(), "interpreter": self._interpreter}

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Return no variables: the other process chooses how it renders."""
        return {}

    def make_sim(self, task: Task) -> Sim:
        """Open the environment of ``task`` in the other interpreter."""
        return self._worlds.open(task)
