"""What one process does for a run: the episodes that are missing, then the videos.

Both are played by one engine, so that simulators which are open stay open for the camera.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from proctor.config.sections import SchedulerKind
from proctor.engine.engine import Engine, EngineSetup
from proctor.engine.scheduler import Bounds, Scheduler
from proctor.errors import UsageError
from proctor.evaluation.filming import (
    Filmed,
    Remembered,
    choose,
    film,
    filming_environment,
    make_camera,
    sees_images,
)
from proctor.evaluation.prepared import Prepared
from proctor.recorders.base import Recorder, close_all
from proctor.recorders.on_disk import EffortLog, Journal
from proctor.recorders.stopper import Stopper
from proctor.report.page import write_page
from proctor.runs.journal import EpisodeRow, video_path, videos_in
from proctor.runs.videos import remove_unfinished
from proctor.types import EpisodeSpec

FilmRecorders = Callable[[int], list[Recorder]]
"""Makes what watches the filming of so many episodes."""


@dataclass(frozen=True)
class Rest:
    """What is left to run of a plan."""

    specs: list[EpisodeSpec]
    begun: int
    """The last index of which an earlier session has ended an episode; -1: none."""


class Session:
    """Holds the engine of a run from its first episode to its last video."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._folder = prepared.folder.path
        self._engine: Engine | None = None
        self._scheduler = Scheduler((), Bounds(max_batch=1))
        self._environment: Mapping[str, str] = {}
        self._remembered = Remembered(prepared.config.video)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._end_workers()
        finally:
            self._tidy_up()

    def _tidy_up(self) -> None:
        remove_unfinished(self._folder)
        log = self._folder / "workers.log"
        if log.exists() and log.stat().st_size == 0:
            log.unlink()

    def run(self, rest: Rest, outputs: Sequence[Recorder], stopper: Stopper) -> None:
        """Run ``rest``; every one that ends is in the journal before anything else hears of it."""
        recorders: list[Recorder] = [
            Journal(self._folder),
            stopper,
            EffortLog(self._folder),
            self._remembered,
            *outputs,
        ]
        try:
            if self._prepared.config.eval.scheduler is SchedulerKind.LOCKSTEP:
                self._run_lockstep(rest.specs, recorders)
            else:
                engine = self._engine_for(rest.specs, self._prepared.environment, rest.begun)
                engine.run(recorders, lambda: stopper.decided)
        except BaseException:
            self._end_workers()  # at once: Ctrl-C does not wait for the report
            raise
        finally:
            close_all(recorders)

    def film(self, rows: Sequence[EpisodeRow], film_recorders: FilmRecorders) -> Filmed:
        """Film the chosen episodes that have no video yet, and show them on the page."""
        prepared, settings = self._prepared, self._prepared.config.video
        chosen = set(choose(rows, settings))
        keys = {key for key in chosen if not (self._folder / video_path(key)).exists()}
        filmed = Filmed()
        if keys:
            if not (settings.asked or sees_images(prepared.policy, prepared.benchmark)):
                note = "no videos: the policy sees no images; --video.episodes=1 films it"
                return Filmed(note=note)
            try:
                environment = filming_environment(prepared.benchmark)
            except UsageError as error:
                return Filmed(note=f"no videos: {error}")
            camera = make_camera(settings, prepared.benchmark, prepared.policy, self._folder)
            specs = [spec for spec in prepared.plan if spec.key in keys]
            engine, watching = self._engine_for(specs, environment), film_recorders(len(specs))
            try:
                filmed.warnings = film(engine, camera, rows, watching, self._remembered.actions)
            finally:
                try:
                    close_all(watching)
                finally:
                    write_page(self._folder)
        videos = videos_in(self._folder)
        filmed.videos = sum(row.video in videos for row in rows)
        return filmed

    def _engine_for(
        self, specs: Sequence[EpisodeSpec], environment: Mapping[str, str], begun: int = -1
    ) -> Engine:
        """Return an engine that has ``specs`` to run: the one there is, if its workers can."""
        if self._engine is not None and environment == self._environment:
            self._scheduler.add(specs)
            return self._engine
        self._end_workers()
        setup = self._engine_setup(len(specs), environment)
        config = self._prepared.config
        bounds = Bounds(
            max_batch=setup.n_workers,
            max_parallel_tasks=config.env.max_parallel_tasks,
            max_attempts=1 + config.eval.max_retries,
            interleave=config.may_stop,
            begun=begun,
        )
        self._scheduler, self._environment = Scheduler(specs, bounds), environment
        self._engine = Engine(setup, self._scheduler)
        return self._engine

    def _engine_setup(self, n_episodes: int, environment: Mapping[str, str]) -> EngineSetup:
        """Return what an engine for so many episodes is made from."""
        prepared, settings = self._prepared, self._prepared.config.eval
        worker = replace(prepared.worker_setup, environment=dict(environment))
        return EngineSetup(
            worker=worker,
            policy=prepared.policy,
            features=prepared.features,
            action=prepared.benchmark.action,
            n_workers=prepared.workers(n_episodes),
            in_process=not settings.use_async_envs,
            watchdog_s=settings.watchdog_s,
        )

    def _run_lockstep(self, specs: Sequence[EpisodeSpec], recorders: Sequence[Recorder]) -> None:
        from proctor.evaluation.lockstep import Lockstep

        settings = self._prepared.config.eval
        Lockstep(
            make_benchmark=self._prepared.make_benchmark,
            policy=self._prepared.policy,
            n_envs=self._prepared.workers(len(specs)),
            use_async_envs=settings.use_async_envs,
            environment=self._prepared.environment,
            recorders=recorders,
        ).run(specs)

    def _end_workers(self) -> None:
        engine, self._engine = self._engine, None  # closed once, also when that fails
        if engine is not None:
            engine.close()
