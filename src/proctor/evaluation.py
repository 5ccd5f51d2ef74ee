"""One evaluation from config to results: checks everything, then runs what is missing."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from proctor import registry
from proctor.benchmarks.base import Benchmark
from proctor.config import EvalConfig, SchedulerKind
from proctor.engine.engine import Engine, EngineSetup
from proctor.engine.pool import check_importable, start_fork_server
from proctor.engine.scheduler import Bounds, Scheduler
from proctor.engine.worker import WorkerSetup
from proctor.errors import RunFolderError, SpecMismatch, UsageError, did_you_mean
from proctor.filming import (
    Filmed,
    choose,
    film,
    filming_environment,
    make_camera,
    sees_images,
)
from proctor.plan import make_plan, workers_for
from proctor.policies.base import Placement, Policy
from proctor.recorders.base import Recorder
from proctor.recorders.effort import EffortLog, read_effort
from proctor.recorders.journal import EpisodeRow, Journal, cut_torn_line, read_journal, video_path
from proctor.recorders.video import remove_unfinished
from proctor.report.comparison import load_run, pair_key
from proctor.report.page import write_page
from proctor.report.sequential import PairedTest, Stopper, StopRule, parse_stop_rule
from proctor.report.summary import Tally, eval_info, tally
from proctor.run import EVAL_INFO_FILE, RunFolder, RunRecord, write_json
from proctor.system import git_commit, usable_cores, usable_memory_bytes, versions
from proctor.types import EpisodeSpec, Feature

MakeRecorders = Callable[["Prepared", Sequence[EpisodeRow]], list[Recorder]]
"""Makes the outputs of a session besides the journal, given the episodes done before."""


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


@dataclass(frozen=True)
class Evaluation:
    """A run after a session on it."""

    path: Path
    planned: int
    rows: list[EpisodeRow]
    stopped: str | None = None
    """Why no further episode is needed, when a stop rule has decided."""
    filmed: Filmed = field(default_factory=Filmed)

    @property
    def tally(self) -> Tally:
        """What all episodes add up to."""
        return tally(self.rows)

    @property
    def complete(self) -> bool:
        """Whether every planned episode has ended."""
        return len(self.rows) == self.planned

    def __str__(self) -> str:
        return str(self.tally)


def prepare(config: EvalConfig) -> Prepared:
    """Check that everything ``config`` names exists and fits together. Starts nothing.

    Raises:
        UsageError: with one line that says what to change.
    """
    folder = RunFolder(config.output_dir or default_folder(config))
    make_benchmark = partial(registry.find_benchmark(config.env.type).make, config.env)
    benchmark = make_benchmark()
    policy = registry.find_policy(config.policy.type).make(config.policy, benchmark)
    if not hasattr(policy, "act"):
        made = type(policy).__name__
        raise UsageError(f"--policy.type={config.policy.type} makes a {made}, which is no policy")
    offered = benchmark.features()
    for key in policy.inputs:
        if key not in offered:
            near = did_you_mean(key, offered) or f" (it offers: {', '.join(offered)})"
            raise SpecMismatch(
                f"policy {policy.name!r} needs {key!r}, {benchmark.name} has none{near}"
            )
    prepared = Prepared(
        config=config,
        make_benchmark=make_benchmark,
        benchmark=benchmark,
        policy=policy,
        features={key: offered[key] for key in policy.inputs},
        plan=make_plan(benchmark, config.eval.indices, config.seed),
        environment=benchmark.preflight(policy.inputs),
        folder=folder,
    )
    check_importable(prepared.worker_setup)
    _check_memory(prepared)
    return prepared


def _check_memory(prepared: Prepared) -> None:
    """Refuse observations that this machine cannot hold, before anything is reserved for them."""
    one = sum(feature.nbytes for feature in prepared.features.values())
    workers = workers_for(prepared.config.eval.batch_size, len(prepared.plan), usable_cores())
    needed, there = workers * prepared.policy.n_obs_steps * one, usable_memory_bytes()
    if needed > there // 2:
        raise UsageError(
            f"the observations of {workers} simulators take {needed / 2**30:.1f} GiB of this "
            f"machine's {there / 2**30:.1f}; lower --eval.batch_size or the size of the images"
        )


def make_stopper(prepared: Prepared) -> Stopper:
    """Return what decides when to stop.

    Raises:
        UsageError: the run to compare with cannot be, or has none of the planned episodes.
    """
    config = prepared.config
    rule = parse_stop_rule(config.eval.stop_when)
    rules: list[StopRule] = [] if rule is None else [rule]
    if config.against is not None:
        reference = load_run(config.against)
        outcomes = {pair_key(row): row.outcome for row in reference.rows}
        shared = {
            spec.key: outcomes[pair_key(spec)]
            for spec in prepared.plan
            if pair_key(spec) in outcomes
        }
        if not shared:
            raise UsageError(
                f"--against: {config.against} has none of the planned episodes "
                "(task, seed, init state); leave out --seed and --env.task to run its own"
            )
        rules.append(PairedTest(shared, str(config.against), config.alpha))
    return Stopper(prepared.plan, rules)


def default_folder(config: EvalConfig) -> Path:
    """Return ``outputs/eval/DATE/TIME_ENV_POLICY``."""
    name = f"%H-%M-%S_{config.env.type}_{config.policy.type}".replace(":", "-").replace("/", "-")
    return Path("outputs", "eval", time.strftime("%Y-%m-%d"), time.strftime(name))


def run_evaluation(
    prepared: Prepared,
    given: dict[str, Any],
    make_recorders: MakeRecorders | None = None,
    before_filming: Callable[[int], None] = lambda episodes: None,
) -> Evaluation:
    """Run the episodes of ``prepared`` that its folder does not hold yet, then film some of them.

    Raises:
        UsageError: the folder holds another run, or the run to compare with cannot be, or videos
            were asked for that cannot be made here.
        RunFolderError: the folder is in use or cannot be written.
        KeyboardInterrupt: passed on, after everything finished is on disk.
    """
    folder, stopper, video = prepared.folder, make_stopper(prepared), prepared.config.video
    if video.asked and video.per_task:
        filming_environment(prepared.benchmark)
    with _live_page(prepared), folder.locked():
        record = folder.begin(_record(prepared, given), resume=prepared.config.resume)
        cut_torn_line(folder.path)
        remove_unfinished(folder.path)
        before = read_journal(folder.path).rows
        missing = _missing(prepared.plan, before, folder.path)
        for row in before:
            stopper.hear(row.key, row.outcome)
        try:
            if missing and not stopper.decided:
                _run_session(prepared, missing, before, make_recorders, stopper)
        finally:
            rows = read_journal(folder.path).rows
            info = eval_info(rows, len(prepared.plan), record.sessions, stopper.decision)
            effort = read_effort(folder.path)
            info["proctor"] |= {"infer_s": effort.infer_s, "mean_batch": effort.mean_batch}
            write_json(folder.path / EVAL_INFO_FILE, info)
            _drop_if_empty(folder.path / "workers.log")
            if not isinstance(sys.exception(), RunFolderError):  # a full disk has no room for it
                write_page(folder.path)
        filmed = _film(prepared, rows, before_filming)
    order = {spec.key: place for place, spec in enumerate(prepared.plan)}
    rows.sort(key=lambda row: order[row.key])
    return Evaluation(folder.path, len(prepared.plan), rows, stopper.decision, filmed)


@contextmanager
def _live_page(prepared: Prepared) -> Iterator[None]:
    """Serve the run's page while it goes on, if that was asked for."""
    config = prepared.config
    if not config.live:
        yield
        return
    from proctor.serve import serving

    with serving(prepared.folder.path, config.live_host, config.live_port) as server:
        print(f"live: {server.url}", file=sys.stderr, flush=True)
        yield


def _record(prepared: Prepared, given: dict[str, Any]) -> RunRecord:
    return RunRecord(
        given={key: value for key, value in given.items() if key not in ("resume", "output_dir")},
        resolved=prepared.config.as_dict(),
        protocol=prepared.protocol(),
        versions=versions((*prepared.benchmark.distributions, "gymnasium", "numpy")),
        machine={
            "platform": platform.platform(),
            "usable_cores": usable_cores(),
            "git_commit": git_commit(),
        },
        sessions=[time.time()],
        planned_episodes=len(prepared.plan),
    )


def _missing(plan: list[EpisodeSpec], done: Sequence[EpisodeRow], path: Path) -> list[EpisodeSpec]:
    keys = {row.key for row in done}
    extra = keys - {spec.key for spec in plan}
    if extra:
        raise UsageError(
            f"--resume: {path} holds {len(extra)} episodes that are not planned now, "
            f"as {min(extra)}; ask for at least the tasks and --eval.n_episodes it was run with"
        )
    return [spec for spec in plan if spec.key not in keys]


def _run_session(
    prepared: Prepared,
    specs: list[EpisodeSpec],
    before: Sequence[EpisodeRow],
    make_recorders: MakeRecorders | None,
    stopper: Stopper,
) -> None:
    folder = prepared.folder.path
    recorders: list[Recorder] = [Journal(folder), stopper, EffortLog(folder)]
    if make_recorders is not None:
        recorders += make_recorders(prepared, before)
    try:
        if prepared.config.eval.scheduler is SchedulerKind.LOCKSTEP:
            _run_lockstep(prepared, specs, recorders)
        else:
            _run_engine(prepared, specs, recorders, stopper)
    finally:
        for recorder in recorders:
            recorder.close()


def _run_engine(
    prepared: Prepared,
    specs: list[EpisodeSpec],
    recorders: Sequence[Recorder],
    stopper: Stopper,
) -> None:
    setup = _engine_setup(prepared, len(specs), prepared.worker_setup)
    bounds = _bounds(prepared, setup.n_workers, interleave=prepared.config.may_stop)
    Engine(setup, Scheduler(specs, bounds), recorders, lambda: stopper.decided).run()


def _engine_setup(prepared: Prepared, n_episodes: int, worker: WorkerSetup) -> EngineSetup:
    """Return an engine for so many episodes, in this process where the whole run would be."""
    settings, cores = prepared.config.eval, usable_cores()
    alone = workers_for(settings.batch_size, len(prepared.plan), cores) == 1
    in_process = alone or not settings.use_async_envs
    if not in_process:
        start_fork_server(prepared.benchmark.preload, worker.environment)
    return EngineSetup(
        worker=worker,
        policy=prepared.policy,
        features=prepared.features,
        action=prepared.benchmark.action,
        n_workers=workers_for(settings.batch_size, n_episodes, cores),
        in_process=in_process,
        watchdog_s=settings.watchdog_s,
    )


def _bounds(prepared: Prepared, n_workers: int, *, interleave: bool = False) -> Bounds:
    return Bounds(
        max_batch=n_workers,
        max_parallel_tasks=prepared.config.env.max_parallel_tasks,
        max_attempts=1 + prepared.config.eval.max_retries,
        interleave=interleave,
    )


def _film(
    prepared: Prepared, rows: Sequence[EpisodeRow], before_filming: Callable[[int], None]
) -> Filmed:
    """Film the chosen episodes that have no video yet, and show them on the page."""
    config, folder = prepared.config, prepared.folder.path
    chosen = set(choose(rows, config.video))
    keys = {key for key in chosen if not (folder / video_path(key)).exists()}
    filmed = Filmed()
    if keys:
        if not (config.video.asked or sees_images(prepared.policy, prepared.benchmark)):
            return Filmed(note="no videos: the policy sees no images; --video.episodes=1 films it")
        try:
            environment = filming_environment(prepared.benchmark)
        except UsageError as error:
            return Filmed(note=f"no videos: {error}")
        before_filming(len(keys))
        camera = make_camera(config.video, prepared.benchmark, prepared.policy, folder)
        worker = replace(prepared.worker_setup, environment=environment, camera=camera)
        setup = _engine_setup(prepared, len(keys), worker)
        specs = [spec for spec in prepared.plan if spec.key in keys]
        try:
            filmed.warnings = film(setup, _bounds(prepared, setup.n_workers), specs, rows)
        finally:
            _drop_if_empty(folder / "workers.log")
            write_page(folder)
    filmed.videos = sum((folder / row.video).exists() for row in rows)
    return filmed


def _run_lockstep(
    prepared: Prepared, specs: list[EpisodeSpec], recorders: Sequence[Recorder]
) -> None:
    from proctor.lockstep import Lockstep

    settings = prepared.config.eval
    Lockstep(
        make_benchmark=prepared.make_benchmark,
        policy=prepared.policy,
        n_envs=workers_for(settings.batch_size, len(specs), usable_cores()),
        use_async_envs=settings.use_async_envs,
        environment=prepared.environment,
        recorders=recorders,
    ).run(specs)


def _drop_if_empty(path: Path) -> None:
    if path.exists() and path.stat().st_size == 0:
        path.unlink()
