"""A run whose every part has been checked, and the parts that its phases are handed.

Episodes are played by ``Players``, resumed and audited by their ``Definition``; what films, tells
W&B or serves a page is handed its own settings and the folder. Only ``run`` holds the whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from proctor import plugins
from proctor.benchmarks.base import Benchmark
from proctor.config.base import RunConfig
from proctor.engine.engine import EngineSetup
from proctor.engine.episode import DIGEST
from proctor.engine.inference import Inference
from proctor.engine.worker import WorkerSetup
from proctor.errors import UsageError
from proctor.evaluation.plan import InferencePlace, WorkerLoad, workers_for
from proctor.features import ActionSpec, Feature
from proctor.fingerprint import PROTOCOL_FORMAT, defining_fields, flatten, json_round_trip
from proctor.policies.base import Placement, Policy
from proctor.runs.folder import RunFolder
from proctor.system.platform_info import installed_versions, usable_cores, usable_memory_bytes
from proctor.types import EpisodeSpec


@dataclass(frozen=True)
class Players:
    """Who plays episodes: simulators, and the policy."""

    worker: WorkerSetup
    policy: Policy
    features: dict[str, Feature]
    """What the policy is shown."""
    action: ActionSpec
    batch_size: int
    """How many simulators at once were asked for; 0: as many as suit the machine."""
    cores: int | None = None
    """How many of the machine's are ours; None: all that this process may use."""

    def engine_setup(
        self, inference: Inference, n_workers: int, *, in_process: bool
    ) -> EngineSetup:
        """Return what an engine with so many simulators is made from."""
        return EngineSetup(
            worker=self.worker,
            inference=inference,
            features=self.features,
            n_obs_steps=self.policy.spec.n_obs_steps,
            n_workers=n_workers,
            in_process=in_process,
        )

    def workers(self, n_episodes: int) -> int:
        """Return how many simulators play so many episodes at once."""
        load = WorkerLoad(self._thinking, self.cores or usable_cores(), usable_memory_bytes())
        return workers_for(self.batch_size, n_episodes, load)

    def most_at_once(self, n_workers: int) -> int:
        """Return how many of so many simulators the policy is asked about in one call."""
        spec = self.policy.spec
        if spec.in_flight > 1:  # each call is about one, on a thread of its own
            return 1
        return min(n_workers, spec.rows_at_once or n_workers)

    @property
    def _thinking(self) -> InferencePlace:
        if self.policy.spec.placement is Placement.WORKER:
            return InferencePlace.BESIDE
        device = self.policy.spec.computes_on
        if device is None:
            return InferencePlace.LIGHT
        return InferencePlace.CPU if device == "cpu" else InferencePlace.ACCELERATOR


@dataclass(frozen=True)
class Definition:
    """What an episode of a run is."""

    protocol: dict[str, Any]
    bit_reproducible: bool
    """Whether an episode gives the same bits whatever the load."""


Config = TypeVar("Config", bound=RunConfig, covariant=True)


@dataclass(frozen=True)
class Prepared(Generic[Config]):
    """A run whose every part has been checked, before anything starts."""

    config: Config
    make_benchmark: Callable[[], Benchmark]
    benchmark: Benchmark
    policy: Policy
    features: dict[str, Feature]
    plan: list[EpisodeSpec]
    environment: dict[str, str]
    packages: dict[str, str]
    """The hashes of the packages that define the benchmark's episodes, by name."""
    folder: RunFolder

    @property
    def players(self) -> Players:
        """Who plays its episodes; workers log into the folder as it is named by now."""
        make_policy = protocol = None
        if self.policy.spec.placement is Placement.WORKER:
            make = plugins.find_policy(self.config.policy.type).make
            make_policy = partial(make, self.config.played_policy)
            protocol = json_round_trip(self.policy.protocol())
        log_file = self.folder.path.absolute() / "workers.log"
        return Players(
            worker=WorkerSetup(
                make_benchmark=self.make_benchmark,
                make_policy=make_policy,
                policy_protocol=protocol,
                environment=self.environment,
                log_file=log_file,
                latency_steps=self.config.eval.latency,
            ),
            policy=self.policy,
            features=self.features,
            action=self.benchmark.action,
            batch_size=self.config.eval.batch_size,
        )

    def definition(self) -> Definition:
        """Return what an episode of this run is."""
        return Definition(self._protocol(), self.policy.spec.bit_exact)

    def _protocol(self) -> dict[str, Any]:
        """Return all that defines an episode of this run, as JSON values.

        That is every field of the config that is not marked as presentation, and what a policy and
        a benchmark say of themselves: one whose config is resolved further (by a checkpoint's) says
        its own ``config``.
        """
        told = {name: value for name, value in defining_fields(self.config).items() if value != {}}
        env, policy = told.pop("env"), told.pop("policy")
        defined = {
            "format": PROTOCOL_FORMAT,
            "benchmark": {
                "type": env.pop("type"),
                "config": env,
                "code": plugins.plugin_code_hashes("benchmarks", self.config.env.type),
                **self.benchmark.protocol(),
            },
            "policy": {
                "type": policy.pop("type"),
                "config": policy,
                "code": plugins.plugin_code_hashes("policies", self.config.policy.type),
                "inputs": list(self.policy.spec.inputs),
                "n_obs_steps": self.policy.spec.n_obs_steps,
                "replan_steps": self.policy.spec.n_action_steps,
                **self.policy.protocol(),
            },
            "digest": DIGEST,
            "environment": self.environment,
            "versions": self._versions(),
            "packages": self.packages,
            **told,
        }
        as_written = json_round_trip(defined)
        for name, value in flatten(as_written).items():
            if not _is_finite(value):
                raise UsageError(f"{name} is {value}: what defines a run must be finite numbers")
        return as_written

    def _versions(self) -> dict[str, str]:
        """Return the versions of what runs; the policy's libraries stand in what it says itself."""
        names = {*self.benchmark.distributions, "numpy", "proctor"}
        known = installed_versions((*self.benchmark.distributions, "numpy"))
        python = ".".join(known["python"].split(".")[:2])
        return {name: known[name] for name in sorted(names & known.keys())} | {"python": python}


def require_judged(benchmark: Benchmark, why: str) -> None:
    """Refuse a benchmark that does not say what a success is, where one is needed.

    Raises:
        UsageError: saying ``why``.
    """
    if not benchmark.judged:
        raise UsageError(f"{why}; --env.success=none gives rewards only: say what a success is")


def _is_finite(value: Any) -> bool:
    """Whether JSON can say a value."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
