"""An evaluation whose every part has been checked: what all of its phases are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from proctor import registry
from proctor.benchmarks.base import Benchmark
from proctor.config import EvalConfig
from proctor.engine.worker import WorkerSetup
from proctor.policies.base import Placement, Policy
from proctor.run import RunFolder
from proctor.system import versions
from proctor.types import EpisodeSpec, Feature


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
            make = registry.find_policy(self.config.policy.type).make
            make_policy = partial(make, self.config.policy)
        log_file = self.folder.path.absolute() / "workers.log"
        return WorkerSetup(self.make_benchmark, make_policy, self.environment, log_file)

    def protocol(self) -> dict[str, Any]:
        """Return all that defines an episode of this evaluation."""
        return {
            "benchmark": {"type": self.config.env.type, **self.benchmark.protocol()},
            "policy": {
                "type": self.config.policy.type,
                "inputs": list(self.policy.inputs),
                "n_obs_steps": self.policy.n_obs_steps,
                "replan_steps": self.policy.n_action_steps,
                **self.policy.protocol(),
            },
            "seed": self.config.seed,
            "environment": self.environment,
            "versions": {
                name: version
                for name, version in versions(self.benchmark.distributions).items()
                if name in self.benchmark.distributions
            },
        }
