"""An evaluation whose every part has been checked: what all of its phases are made from."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from proctor import plugins
from proctor.benchmarks.base import Benchmark
from proctor.config.evaluation import EvalConfig
from proctor.definition import PROTOCOL_FORMAT, defining
from proctor.engine.episode import DIGEST
from proctor.engine.worker import WorkerSetup
from proctor.evaluation.plan import Load, Thinking, workers_for
from proctor.features import Feature
from proctor.machine.source_files import source_hashes
from proctor.machine.system import usable_cores, usable_memory_bytes, versions
from proctor.policies.base import Placement, Policy
from proctor.runs.folder import RunFolder
from proctor.types import EpisodeSpec


@dataclass(frozen=True)
class Prepared:
    """An evaluation whose every part has been checked, before anything starts."""

    config: EvalConfig
    make_benchmark: Callable[[], Benchmark]
    benchmark: Benchmark
    policy: Policy
    features: dict[str, Feature]
    plan: list[EpisodeSpec]
    environment: dict[str, str]
    folder: RunFolder

    @property
    def worker_setup(self) -> WorkerSetup:
        """What workers are made from."""
        make_policy = None
        if self.policy.placement is Placement.WORKER:
            make = plugins.find_policy(self.config.policy.type).make
            make_policy = partial(make, self.config.policy)
        log_file = self.folder.path.absolute() / "workers.log"
        return WorkerSetup(self.make_benchmark, make_policy, self.environment, log_file)

    def workers(self, n_episodes: int) -> int:
        """Return how many simulators run so many of its episodes at once."""
        load = Load(self._thinking, usable_cores(), usable_memory_bytes())
        return workers_for(self.config.eval.batch_size, n_episodes, load)

    @property
    def _thinking(self) -> Thinking:
        if self.policy.placement is Placement.WORKER:
            return Thinking.BESIDE
        device = getattr(self.policy, "computes_on", None)
        if device is None:
            return Thinking.LIGHT
        return Thinking.CPU if device == "cpu" else Thinking.ACCELERATOR

    def protocol(self) -> dict[str, Any]:
        """Return all that defines an episode of this evaluation, as JSON values.

        That is every field of the config that is not marked as presentation, and what a policy and
        a benchmark say of themselves: one whose config is resolved further (by a checkpoint's) says
        its own ``config``.
        """
        told = {name: value for name, value in defining(self.config).items() if value != {}}
        env, policy = told.pop("env"), told.pop("policy")
        defined = {
            "format": PROTOCOL_FORMAT,
            "benchmark": {
                "type": env.pop("type"),
                "config": env,
                "code": _code("benchmarks", self.config.env.type),
                **self.benchmark.protocol(),
            },
            "policy": {
                "type": policy.pop("type"),
                "config": policy,
                "code": _code("policies", self.config.policy.type),
                "inputs": list(self.policy.inputs),
                "n_obs_steps": self.policy.n_obs_steps,
                "replan_steps": self.policy.n_action_steps,
                **self.policy.protocol(),
            },
            "digest": DIGEST,
            "environment": self.environment,
            "versions": self._versions(),
            **told,
        }
        as_written: dict[str, Any] = json.loads(json.dumps(defined))
        return as_written

    @property
    def bit_reproducible(self) -> bool:
        """Whether an episode of this evaluation gives the same bits whatever the load."""
        return bool(getattr(self.policy, "bit_exact", True))

    def _versions(self) -> dict[str, str]:
        """Return the versions of what runs; the policy's libraries stand in what it says itself."""
        names = {*self.benchmark.distributions, "numpy", "proctor"}
        known = versions((*self.benchmark.distributions, "numpy"))
        python = ".".join(known["python"].split(".")[:2])
        return {name: known[name] for name in sorted(names & known.keys())} | {"python": python}


def _code(kind: str, name: str) -> dict[str, str]:
    """Return the hashes of a plug-in's files, where it is not our own: ours have a version."""
    module = plugins.module_of(kind, name)
    file = None if module is None else getattr(sys.modules.get(module), "__file__", None)
    if module is None or file is None or not Path(file).is_file():  # as from a zip file
        return {}
    return source_hashes(Path(file), module.count(".") + (Path(file).stem == "__init__"))
