"""From a config to parts that fit together: everything is checked, nothing is started."""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from proctor import plugins
from proctor.benchmarks.base import Benchmark, interface_of
from proctor.benchmarks.checks import check_benchmark
from proctor.config.base import RunConfig
from proctor.engine.pool import check_importable
from proctor.engine.rollout_settings import RolloutSettings
from proctor.errors import UsageError, did_you_mean
from proctor.evaluation.background_setup import start_background_setup
from proctor.evaluation.plan import (
    descriptors_for,
    make_plan,
    n_workers,
    planned_tasks,
    workers_within,
)
from proctor.evaluation.rollout_context import RolloutContext
from proctor.features import Interface
from proctor.fingerprint import without_secrets
from proctor.policies.base import Policy, PolicyPlugin, PolicySpec
from proctor.policies.checks import check_policy
from proctor.policies.compatibility import check_instructions, check_offered
from proctor.policies.latency import check_latency
from proctor.runs.folder import RunFolder, RunRecord
from proctor.system.package_files import package_hashes
from proctor.system.platform_info import (
    git_commit,
    installed_versions,
    raise_descriptor_limit,
    torch_hardware,
    usable_cores,
    usable_memory_bytes,
)
from proctor.system.ray_cluster import check_cluster

Config = TypeVar("Config", bound=RunConfig)


def checked(config: Config, folder: RunFolder, indices: Collection[int]) -> RolloutContext[Config]:
    """Check that everything ``config`` names exists and fits together, for these episodes a task.

    Runs no simulator and writes nothing; what will take time is begun (see ``head_start``).

    Raises:
        UsageError: with one line that says what to change.
    """
    if config.cluster is not None:
        check_cluster(config.cluster)
    with plugins.blame_plugin("benchmarks", config.env.type):
        context = _fitted(config, folder, indices)
    settings = context.settings()
    check_importable(settings)
    if config.cluster is not None:
        return context  # every node sees to its own memory
    workers = n_workers(settings, context.policy.spec, len(context.plan))
    _check_memory(settings, workers)
    if config.eval.use_async_envs:
        _check_descriptors(workers)
    return context


def _pinned(config: Config) -> Config:
    """Return the config with the one checkpoint that its policy is read from, links followed."""
    pin = plugins.find_policy(config.policy.type).pinned
    if pin is None:
        return config
    same = copy.copy(config)  # with its notes
    same.policy = pin(config.policy)
    return same


def look(config: RunConfig) -> PolicyPlugin:
    """Refuse what can be told of a policy without making it; return how it is made.

    Raises:
        UsageError: its files are not there, or no chunk lasts for the latency.
    """
    plugin = plugins.find_policy(config.policy.type)
    if plugin.look is not None:
        plugin.look(config.played_policy)
    return plugin


def look_ahead(config: RunConfig) -> None:
    """Refuse at once what would be refused when the turn of one of several runs has come.

    A policy without a network is made for it: a script in no time, a server's is asked.

    Raises:
        UsageError: as ``look``.
    """
    plugin = look(config)
    if config.eval.latency and not plugin.has_network:
        policy = _made_policy(config, interface_of(_made_benchmark(config)[1]))
        try:
            _check_latency(config, policy.spec)
        finally:
            policy.close()


def _fitted(config: Config, folder: RunFolder, indices: Collection[int]) -> RolloutContext[Config]:
    """Make benchmark and policy, and see that they fit."""
    config = _pinned(config)
    plugin = look(config)
    make_benchmark, benchmark = _made_benchmark(config)
    if config.eval.use_async_envs:  # first: what workers are forked from has the limit it finds
        raise_descriptor_limit(descriptors_for(config.eval.batch_size))
    in_workers = config.eval.use_async_envs and config.cluster is None
    start_background_setup(benchmark, in_workers=in_workers, images=plugin.has_network)
    interface = interface_of(benchmark)
    with ThreadPoolExecutor(1) as thread:  # the first time it takes a second: as long as a policy
        hashes = thread.submit(package_hashes, benchmark.distributions)
        policy = _made_policy(config, interface)
        packages = _result(hashes)
    check_offered(policy.spec.inputs, interface, f"policy {policy.spec.name!r}")
    _check_instructions(policy.spec, benchmark)
    _check_latency(config, policy.spec)
    return RolloutContext(
        config=config,
        make_benchmark=make_benchmark,
        benchmark=benchmark,
        policy=policy,
        features={key: interface.features[key] for key in policy.spec.inputs},
        plan=make_plan(benchmark, indices, config.seed),
        environment=benchmark.preflight(policy.spec.inputs),
        packages=packages,
        folder=folder,
    )


def _result(hashes: Future[dict[str, str]]) -> dict[str, str]:
    try:
        return hashes.result()
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None


def _made_benchmark(config: RunConfig) -> tuple[Callable[[], Benchmark], Benchmark]:
    """Return the benchmark and how workers make it; one of somebody else's is looked at first."""
    make_benchmark = plugins.find_benchmark(config.env.type).maker(config.env)
    benchmark = make_benchmark()
    if plugins.plugin_module("benchmarks", config.env.type) is not None:
        check_benchmark(benchmark)
    return make_benchmark, benchmark


def _made_policy(config: RunConfig, interface: Interface) -> Policy:
    """Return the policy; one of somebody else's is looked at first."""
    kind = config.policy.type
    with plugins.blame_plugin("policies", kind):
        policy = plugins.find_policy(kind).make(config.played_policy, interface)
        if not isinstance(policy, Policy):
            made = type(policy).__name__
            raise UsageError(f"--policy.type={kind} makes a {made}, which is no policy")
        if plugins.plugin_module("policies", kind) is not None:
            check_policy(policy)
    return policy


def _check_instructions(policy: PolicySpec, benchmark: Benchmark) -> None:
    """Refuse tasks without an instruction where the policy needs one, and words for no task."""
    if policy.language_conditioned:
        check_instructions(policy.name, benchmark.name, benchmark.tasks())
    names = [task.name for task in benchmark.tasks()]
    for name in policy.worded:
        if name not in names:
            raise UsageError(
                f"--policy.instructions: {benchmark.name} plays no task {name!r}"
                f"{did_you_mean(name, names)}"
            )


def _check_latency(config: RunConfig, policy: PolicySpec) -> None:
    if policy.n_action_steps is not None:  # a chunk of any length is looked at when it comes
        check_latency(config.eval.latency, policy.name, policy.n_action_steps)


def _check_memory(settings: RolloutSettings, workers: int) -> None:
    """Refuse observations that this machine cannot hold, before anything is reserved for them."""
    one = sum(feature.nbytes for feature in settings.features.values())
    needed, there = workers * settings.n_obs_steps * one, usable_memory_bytes()
    if needed > there // 2:
        raise UsageError(
            f"the observations of {workers} simulators take {needed / 2**30:.1f} GiB of this "
            f"machine's {there / 2**30:.1f}; lower --eval.batch_size or the size of the images"
        )


def _check_descriptors(workers: int) -> None:
    """Refuse more workers than this process may have open files for."""
    needed = descriptors_for(workers)
    allowed = raise_descriptor_limit(needed)
    if allowed < needed:
        fits = workers_within(allowed)
        way_out = f"--eval.batch_size={fits} fits" if fits else "allow more"
        raise UsageError(
            f"{workers} simulators take {needed} open files and {allowed} are allowed here "
            f"(ulimit -n); {way_out}"
        )


def record_of(
    context: RolloutContext[Config], protocol: dict[str, Any], given: dict[str, Any]
) -> RunRecord:
    """Return what ``run.json`` of a first session says; ``RunFolder.joined`` adds when it began."""
    kept = {key: value for key, value in given.items() if key not in ("resume", "output_dir")}
    return RunRecord(
        given=without_secrets(context.config, kept),
        resolved=without_secrets(context.config, context.config.as_dict()),
        protocol=protocol,
        versions=installed_versions((*context.benchmark.distributions, "gymnasium", "numpy")),
        machine={
            "platform": platform.platform(),
            "usable_cores": usable_cores(),
            "git_commit": git_commit(),
            **torch_hardware(),
        },
        sessions=[],
        planned_episodes=len(context.plan),
        bit_reproducible=context.policy.spec.bit_exact,
        tasks=planned_tasks(context.plan),
    )
