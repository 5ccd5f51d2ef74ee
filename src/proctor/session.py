"""The two phases of a run: the episodes that are missing, then the camera's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from proctor.engine.engine import Engine, EngineSetup
from proctor.engine.pool import start_fork_server
from proctor.engine.scheduler import Bounds, Scheduler
from proctor.engine.worker import WorkerSetup
from proctor.errors import UsageError
from proctor.filming import (
    Filmed,
    choose,
    film,
    filming_environment,
    make_camera,
    sees_images,
)
from proctor.plan import workers_for
from proctor.prepared import Prepared
from proctor.recorders.base import Recorder
from proctor.recorders.effort import EffortLog
from proctor.recorders.journal import EpisodeRow, Journal, video_path
from proctor.report.page import write_page
from proctor.report.sequential import Stopper
from proctor.settings import SchedulerKind
from proctor.system import usable_cores
from proctor.types import EpisodeSpec


def run_session(
    prepared: Prepared,
    specs: list[EpisodeSpec],
    outputs: Sequence[Recorder],
    stopper: Stopper,
) -> None:
    """Run ``specs``; every one that ends is in the journal before anything else hears of it."""
    folder = prepared.folder.path
    recorders: list[Recorder] = [Journal(folder), stopper, EffortLog(folder), *outputs]
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


def film_episodes(
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
            drop_if_empty(folder / "workers.log")
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


def drop_if_empty(path: Path) -> None:
    """Remove a log that nothing was written to."""
    if path.exists() and path.stat().st_size == 0:
        path.unlink()
