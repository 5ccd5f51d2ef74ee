"""Makes a checked ``RolloutContext`` from a config. Checks everything and starts no simulator."""

from __future__ import annotations

import contextlib
import copy
import platform
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from proctor import plugins
from proctor.benchmarks.base import Benchmark, display_keys, interface_of
from proctor.benchmarks.checks import check_benchmark, check_task_ids
from proctor.callbacks.judge import Judge
from proctor.config.base import RunConfig
from proctor.config.evaluation import EvalConfig
from proctor.engine.processes.forking import start_fork_server
from proctor.engine.processes.pool import check_importable
from proctor.engine.processes.warm_workers import (
    FirstEpisode,
    WarmWorkers,
    close_warm_workers,
    use_warm_workers,
)
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.scheduler import Scheduler
from proctor.errors import ProctorError, UsageError, did_you_mean
from proctor.evaluation.perturbing import MadeBenchmark, with_perturbations, without_unnoticed
from proctor.evaluation.plan import (
    InferencePlacement,
    WorkerLoad,
    best_simulators,
    descriptors_for,
    make_plan,
    n_workers,
    planned_tasks,
    workers_for,
    workers_within,
)
from proctor.evaluation.rollout_context import RolloutContext, scheduler_limits
from proctor.evaluation.starts.trained_starts import trained_starts_of
from proctor.evaluation.starts.unseen import with_unseen_plan
from proctor.features import Interface
from proctor.fingerprint import without_secrets
from proctor.policies.base import Policy, PolicyConfig, PolicyPlugin, PolicySpec
from proctor.policies.checks import check_policy
from proctor.policies.compatibility import (
    check_compatible,
    check_instructions,
    check_offered,
)
from proctor.policies.latency import check_latency
from proctor.runs.folder import RunFolder, RunRecord
from proctor.runs.path_checks import refuse_run_inside_dataset
from proctor.runs.paths import record_paths
from proctor.system.platform.environment import DRAWER_VARIABLE
from proctor.system.platform.package_files import package_hashes
from proctor.system.platform.platform_info import (
    git_commit,
    installed_versions,
    raise_descriptor_limit,
    torch_hardware,
    usable_cores,
    usable_memory_bytes,
)
from proctor.system.ray_cluster import check_cluster


def start_background_setup(
    benchmark: Benchmark, *, in_workers: bool, images: bool, warm: WarmWorkers | None = None
) -> None:
    """Start to import the simulator's modules and, for ``images``, to probe the GL backends.

    The ``warm`` workers start as soon as the GL backend is known. Returns at once. All of it runs
    in other processes; the code that needs the results waits for them.
    """
    variables = benchmark.preflight(())
    if in_workers:
        start_fork_server(benchmark.preload, variables)
    if images:
        if warm is not None:
            use_warm_workers(warm)
        threading.Thread(target=_find_graphics, args=(benchmark, warm), daemon=True).start()


def _find_graphics(benchmark: Benchmark, warm: WarmWorkers | None) -> None:
    """Fill the cache that the next ``preflight`` reads, and start the ``warm`` workers."""
    try:
        # The caller that needs the backend asks again and gets the error.
        with contextlib.suppress(ProctorError):
            environment = benchmark.preflight(display_keys(benchmark.features()))
            if warm is not None:
                warm.start(environment)
    finally:
        if warm is not None:
            warm.skip()


Config = TypeVar("Config", bound=RunConfig)


def prepare(config: EvalConfig) -> RolloutContext[EvalConfig]:
    """Check that everything ``config`` names exists and matches.

    Writes nothing, and runs no simulator except for --eval.unseen, whose plan depends on measured
    starts. Slow set-up starts here (see ``background_setup``).
    """
    default = config.output_dir is None
    folder = RunFolder(config.output_dir or default_folder(config), or_next=default)
    if config.record is not None:
        refuse_run_inside_dataset(folder.path, config.record, "--record")
    if not config.resume:
        folder.refuse_foreign_content()
    indices = config.eval.indices
    context = prepare_context(config, folder, indices, _load_judge(config))
    trained = trained_starts_of(context.config.played_policy, context.benchmark)
    context = replace(context, trained=trained)
    return with_unseen_plan(context, indices) if config.eval.plans_unseen else context


def _load_judge(config: EvalConfig) -> Judge | None:
    """Return the judge of --eval.judge."""
    path = config.eval.judge
    if path is None:
        return None
    from proctor.policies.reward_classifier.predictor import load_predictor

    predictor = load_predictor(path)
    if not predictor.is_binary:
        raise UsageError(
            f"--eval.judge={path} has more than two classes: a judge says success or failure",
            code="policy.not-a-judge",
        )
    return Judge(predictor, config.eval.judge_threshold)


def default_folder(config: EvalConfig) -> Path:
    """Return ``outputs/eval/DATE/TIME_ENV_POLICY``; a number is appended if that exists."""
    job = config.job_name or f"{config.env.type}_{config.policy.type}"
    name = f"{time.strftime('%H-%M-%S')}_{job}".replace(":", "-").replace("/", "-")
    return Path("outputs", "eval", time.strftime("%Y-%m-%d"), name)


def prepare_context(
    config: Config, folder: RunFolder, indices: Collection[int], judge: Judge | None = None
) -> RolloutContext[Config]:
    """Check that everything ``config`` names exists and matches; plan these episodes per task.

    ``judge`` sees the last images of every episode. This runs no simulator and writes nothing. Slow
    set-up starts here (see ``background_setup``).
    """
    if config.cluster is not None:
        check_cluster(config.cluster)
    try:
        with plugins.blame_plugin("benchmarks", config.env.type):
            context = _make_context(config, folder, indices, judge)
        _check_context(context)
    except BaseException:
        close_warm_workers()
        raise
    return context


def _check_context(context: RolloutContext[RunConfig]) -> None:
    """Check the run against this machine."""
    config = context.config
    settings = context.settings()
    check_importable(settings)
    if config.cluster is not None:
        if DRAWER_VARIABLE in context.environment:
            raise UsageError(
                "--env.renderer=warp draws on one machine; leave out --cluster, or use "
                "--env.renderer=gl",
                code="flag.conflict",
            )
        return  # every node checks its own memory
    workers = n_workers(settings, context.policy.spec, len(context.plan))
    _check_memory(settings, workers)
    if config.eval.use_async_envs:
        _check_descriptors(workers)


def _with_pinned_checkpoint(config: Config) -> Config:
    """Return the config with its checkpoint's path resolved: links are followed once."""
    pin = plugins.find_policy(config.policy.type).pin
    if pin is None:
        return config
    same = copy.copy(config)  # keeps its notes
    same.policy = pin(config.policy)
    return same


def check_policy_settings(config: RunConfig) -> PolicyPlugin:
    """Check a policy's settings without making the policy; return its plug-in."""
    plugin = plugins.find_policy(config.policy.type)
    if plugin.check_config is not None:
        plugin.check_config(config.played_policy)
    return plugin


def check_ahead_of_time(config: RunConfig) -> None:
    """Check one of several runs before the first one starts.

    For the latency check a policy without a network is made: a script takes no time, and a remote
    policy's server is asked.
    """
    plugin = check_policy_settings(config)
    if config.eval.latency and not plugin.has_network:
        policy = make_policy(
            config.played_policy, interface_of(_make_benchmark(config)[1], config.env)
        )
        try:
            _check_latency(config, policy.spec)
        finally:
            policy.close()


def _make_context(
    config: Config, folder: RunFolder, indices: Collection[int], judge: Judge | None
) -> RolloutContext[Config]:
    """Make benchmark and policy, and check that they match."""
    config = _with_pinned_checkpoint(config)
    plugin = check_policy_settings(config)
    make_benchmark, benchmark = _make_benchmark(config)
    if config.eval.use_async_envs:  # first: the fork server inherits the limit
        raise_descriptor_limit(descriptors_for(config.eval.batch_size))
    in_workers = config.eval.use_async_envs and config.cluster is None
    warm = None
    first_known = not config.eval.plans_unseen
    if in_workers and first_known and plugin.image_inputs is not None:
        inputs = plugin.image_inputs(config.played_policy)
        warm = _warm_workers(config, (make_benchmark, benchmark), indices, inputs)
    start_background_setup(benchmark, in_workers=in_workers, images=plugin.has_network, warm=warm)
    interface = interface_of(benchmark, config.env)
    with ThreadPoolExecutor(1) as thread:  # hashing takes up to a second
        hashes = thread.submit(package_hashes, benchmark.distributions)
        policy = make_policy(config.played_policy, interface)
        try:
            packages = hashes.result()
        except OSError as error:
            raise UsageError(
                f"cannot read {error.filename}: {error.strerror}", code="plugin.unreadable"
            ) from None
    check_offered(policy.spec.inputs, interface, f"policy {policy.spec.name!r}")
    make_benchmark, benchmark = without_unnoticed(config, (make_benchmark, benchmark), policy.spec)
    _check_instructions(policy.spec, benchmark)
    _check_latency(config, policy.spec)
    judged = {} if judge is None else judge.features
    check_compatible(judged, interface, {}, who="the judge")
    return RolloutContext(
        config=config,
        make_benchmark=make_benchmark,
        benchmark=benchmark,
        policy=policy,
        features={key: interface.features[key] for key in policy.spec.inputs},
        plan=make_plan(benchmark, indices, config.seed, config.eval.episodes_per_world),
        environment=benchmark.preflight((*policy.spec.inputs, *judged)),
        packages=packages,
        folder=folder,
        judge=judge,
    )


def _warm_workers(
    config: RunConfig, made: MadeBenchmark, indices: Collection[int], inputs: Collection[str]
) -> WarmWorkers | None:
    """Return workers that render the first of the images ``inputs`` while the policy is loaded.

    None where the run would not use them: no images, a lockstep run, simulators in another
    interpreter, third-party code.
    """
    make_benchmark, benchmark = made
    third_party = plugins.plugin_module("benchmarks", config.env.type) is not None
    elsewhere = config.eval.lockstep or benchmark.worker_interpreter is not None
    features = benchmark.features()
    keys = tuple(key for key in inputs if key in features) or display_keys(features)
    if not inputs or not keys or third_party or elsewhere:
        return None
    cores = usable_cores()
    load = WorkerLoad(InferencePlacement.CPU, cores, usable_memory_bytes())
    most = min(best_simulators(load), max(1, cores - 1))  # a core imports torch
    first = make_plan(
        benchmark, sorted(indices)[:most], config.seed, config.eval.episodes_per_world
    )
    scheduler = Scheduler(first, scheduler_limits(config))
    n = min(most, workers_for(config.eval.batch_size, len(first), load))
    specs = [spec for slot in range(n) if (spec := scheduler.assign(slot)) is not None]
    return WarmWorkers([FirstEpisode(make_benchmark, spec, keys) for spec in specs])


def _make_benchmark(config: RunConfig) -> tuple[Callable[[], Benchmark], Benchmark]:
    """Return the benchmark and its factory for workers; a third-party plug-in is checked."""
    make_benchmark = plugins.benchmark_maker(config.env)
    benchmark = make_benchmark()
    if plugins.plugin_module("benchmarks", config.env.type) is not None:
        check_benchmark(benchmark)
    check_task_ids(benchmark, config.env.task_ids)
    return with_perturbations(config, make_benchmark, benchmark)


def make_policy(config: PolicyConfig, interface: Interface) -> Policy:
    """Return the policy; a third-party plug-in is checked."""
    kind = config.type
    with plugins.blame_plugin("policies", kind):
        policy = plugins.find_policy(kind).make(config, interface)
        if not isinstance(policy, Policy):
            kind_of_object = type(policy).__name__
            raise UsageError(
                f"--policy.type={kind} makes a {kind_of_object}, not a Policy",
                code="plugin.not-a-policy",
            )
        if plugins.plugin_module("policies", kind) is not None:
            check_policy(policy)
    return policy


def _check_instructions(policy: PolicySpec, benchmark: Benchmark) -> None:
    """Refuse tasks without an instruction if the policy needs one, and instructions for no task."""
    if policy.language_conditioned:
        check_instructions(policy.name, benchmark.name, benchmark.tasks())
    names = [task.name for task in benchmark.tasks()]
    for name in policy.tasks_with_instruction:
        if name not in names:
            raise UsageError(
                f"--policy.instructions: {benchmark.name} has no task {name!r}"
                f"{did_you_mean(name, names)}",
                code="policy.unknown-task",
            )


def _check_latency(config: RunConfig, policy: PolicySpec) -> None:
    if policy.n_action_steps is not None:  # None: each chunk is checked when it arrives
        check_latency(config.eval.latency, policy.name, policy.n_action_steps)


def _check_memory(settings: RolloutSettings, workers: int) -> None:
    """Refuse observations that do not fit this machine's memory, before any is allocated."""
    one = sum(feature.nbytes for feature in settings.features.values())
    needed, available = workers * settings.n_obs_steps * one, usable_memory_bytes()
    if needed > available // 2:
        raise UsageError(
            f"the observations of {workers} simulators take {needed / 2**30:.1f} GiB of this "
            f"machine's {available / 2**30:.1f}; lower --eval.batch_size or the size of the images",
            code="system.too-little-memory",
        )


def _check_descriptors(workers: int) -> None:
    """Refuse more workers than the limit of open files allows."""
    needed = descriptors_for(workers)
    allowed = raise_descriptor_limit(needed)
    if allowed < needed:
        fits = workers_within(allowed)
        way_out = f"--eval.batch_size={fits} fits" if fits else "allow more"
        raise UsageError(
            f"{workers} simulators take {needed} open files and {allowed} are allowed here "
            f"(ulimit -n); {way_out}",
            code="system.too-few-descriptors",
        )


def make_run_record(
    context: RolloutContext[Config], protocol: dict[str, Any], given: dict[str, Any]
) -> RunRecord:
    """Return the ``run.json`` of a first session; ``RunFolder.session_record`` adds its start."""
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
        paths=record_paths(context.config, given, context.folder.path),
        scores=list(context.benchmark.scores),
        warnings=context.warnings,
    )
