"""The context of a checked run: its config, benchmark, policy, episode plan and run folder.

Only the modules that set a run up hold the context. The phases of a run receive what they need:
``RolloutSettings`` and the policy to roll out episodes, the protocol to resume and audit them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from proctor import plugins
from proctor.benchmarks.base import Benchmark
from proctor.benchmarks.starts import start_keys
from proctor.callbacks.judge import Judge
from proctor.config.base import RunConfig
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.scheduler import SchedulerLimits
from proctor.engine.worker.episode import DIGEST
from proctor.errors import UsageError
from proctor.features import Feature
from proctor.fingerprint import (
    JUDGE,
    PROTOCOL_FORMAT,
    defining_fields,
    flatten,
    json_round_trip,
)
from proctor.policies.base import Placement, Policy
from proctor.runs.folder import RunFolder
from proctor.system.platform.environment import lasting_variables
from proctor.system.platform.platform_info import installed_versions
from proctor.trained_starts import TrainedStarts
from proctor.types import EpisodeSpec

Config = TypeVar("Config", bound=RunConfig, covariant=True)


@dataclass(frozen=True)
class RolloutContext(Generic[Config]):
    """The live objects of a run, checked against each other before anything starts."""

    config: Config
    make_benchmark: Callable[[], Benchmark]
    benchmark: Benchmark
    policy: Policy
    features: dict[str, Feature]
    plan: list[EpisodeSpec]
    environment: dict[str, str]
    packages: dict[str, str]
    """Hashes of the packages that define the benchmark's episodes, by name."""
    folder: RunFolder
    judge: Judge | None = None
    """Judges the last images of every episode, beside the simulator."""
    trained: TrainedStarts | None = None
    """The starts that trained the policy; None: no training made it, or nothing is evaluated."""
    plan_notes: tuple[str, ...] = ()
    """Notes about how the plan was made."""

    @property
    def warnings(self) -> list[str]:
        """Warnings of benchmark and policy, which change what the run's results mean."""
        return [*self.benchmark.warnings, *self.policy.spec.warnings]

    def settings(self) -> RolloutSettings:
        """Return how this run's episodes are rolled out, by the engine here or on a cluster node.

        Workers log into the run folder and follow the session's clock. Both may change until the
        folder is locked and the session begins, so a session asks for its settings after that.
        """
        make_policy = protocol = None
        interpreter = self.benchmark.worker_interpreter
        if self.policy.spec.placement is Placement.WORKER:
            make = plugins.find_policy(self.config.policy.type).make
            make_policy = partial(make, self.config.played_policy)
            protocol = json_round_trip(self.policy.protocol())
            if interpreter is not None and interpreter.make_sims is not None:
                interpreter = None  # too old for the policy
        return RolloutSettings(
            make_benchmark=self.make_benchmark,
            action=self.benchmark.action,
            make_policy=make_policy,
            policy_protocol=protocol,
            interpreter=interpreter,
            environment=self.environment,
            log_file=self.folder.path.absolute() / "workers.log",
            latency=self.config.eval.latency,
            flags=self.config.eval,
            limits=scheduler_limits(self.config),
            features=self.features,
            n_obs_steps=self.policy.spec.n_obs_steps,
            start_keys=start_keys(self.benchmark.features()),
            judged_images={} if self.judge is None else self.judge.features,
        )

    def protocol(self) -> dict[str, Any]:
        """Return everything that defines an episode of this run, as JSON values.

        That is every field of the config that is not marked as presentation, and the protocols of
        policy and benchmark. A policy whose config is completed by its checkpoint reports its own
        ``config``.
        """
        fields = {
            name: value for name, value in defining_fields(self.config).items() if value != {}
        }
        env, policy = fields.pop("env"), fields.pop("policy")
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
            "environment": lasting_variables(self.environment),
            "versions": self._versions(),
            "packages": self.packages,
            **({} if self.judge is None else {JUDGE: self.judge.protocol()}),
            **self._unseen_protocol(),
            **fields,
        }
        as_written = json_round_trip(defined)
        for name, value in flatten(as_written).items():
            if not _is_finite(value):
                raise UsageError(
                    f"{name} is {value}: what defines a run must be finite numbers",
                    code="run.not-finite",
                )
        return as_written

    def _unseen_protocol(self) -> dict[str, Any]:
        """Return what --eval.unseen plans by: the starts that trained the policy."""
        if not self.config.eval.plans_unseen or self.trained is None:
            return {}
        return {"trained_starts": self.trained.digest}

    def _versions(self) -> dict[str, str]:
        """Return the versions of the benchmark's packages; the policy's protocol has its own."""
        names = {*self.benchmark.distributions, "numpy", "proctor"}
        known = installed_versions((*self.benchmark.distributions, "numpy"))
        python = ".".join(known["python"].split(".")[:2])
        return {name: known[name] for name in sorted(names & known.keys())} | {"python": python}


def scheduler_limits(config: RunConfig) -> SchedulerLimits:
    """Return the scheduler's limits, except for those that depend on what is left to run."""
    return SchedulerLimits(
        max_batch=1,
        max_parallel_tasks=config.env.max_parallel_tasks,
        max_attempts=1 + config.eval.max_retries,
        interleave=config.may_stop,
    )


def require_judged(benchmark: Benchmark, why: str) -> None:
    """Refuse a benchmark without a success rule where success is needed."""
    if not benchmark.judged:
        raise UsageError(
            f"{why}; --env.success=none gives rewards only: say what a success is",
            code="env.without-success",
        )


def _is_finite(value: Any) -> bool:
    """Whether a value can be written as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
