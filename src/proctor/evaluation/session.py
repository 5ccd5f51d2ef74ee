"""What one process does for a run: the episodes that are missing, then the videos.

Both are played by one engine, so that simulators which are open stay open for the camera.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from proctor.config.sections import SchedulerKind
from proctor.engine.engine import Engine
from proctor.engine.inference import Inference, InlineInference, ThreadInference
from proctor.engine.replicated import ReplicatedInference
from proctor.engine.scheduler import Bounds, Scheduler
from proctor.errors import UsageError
from proctor.evaluation.filming import Filmed, Filming, Remembered, film
from proctor.evaluation.plan import Rest
from proctor.evaluation.prepared import Players
from proctor.recorders.base import Recorder, close_all
from proctor.recorders.on_disk import EffortLog, Journal
from proctor.recorders.stopper import Stopper
from proctor.recorders.takes import Recording
from proctor.report.page import write_page
from proctor.runs.journal import EpisodeRow, videos_in
from proctor.runs.videos import remove_unfinished
from proctor.types import EpisodeSpec

FilmRecorders = Callable[[int], list[Recorder]]
"""Makes what watches the filming of so many episodes."""


@dataclass(frozen=True)
class SessionRules:
    """How a session runs its episodes; none of it changes what they are."""

    scheduler: SchedulerKind
    in_process: bool
    watchdog_s: float
    draw_slots: int | None
    bounds: Bounds
    """Of the scheduler, but for what depends on how much is left to run."""


class Session:
    """Holds the engine of a run from its first episode to its last video."""

    def __init__(
        self,
        players: Players,
        rules: SessionRules,
        filming: Filming,
        recording: Recording | None = None,
    ) -> None:
        self._players = players
        self._rules = rules
        self._filming = filming
        self._recording = recording
        self._folder = filming.folder
        self._engine: Engine | None = None
        self._inference: Inference | None = None
        self._scheduler = Scheduler((), Bounds(max_batch=1))
        self._environment: Mapping[str, str] = {}
        self._remembered = Remembered(filming.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self._tidy_up)
            if self._inference is not None:
                closing.callback(self._inference.close)
            closing.callback(self._end_workers)

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
            if self._rules.scheduler is SchedulerKind.LOCKSTEP:
                self._run_lockstep(rest.specs, recorders)
            else:
                environment = self._players.worker.environment
                engine = self._engine_for(rest.specs, environment, rest.begun)
                while not self._scheduler.done:  # what a recorder asks for in the end is run too
                    engine.run(recorders, lambda: stopper.decided, recording=self._recording)
        except BaseException:
            self._end_workers()  # at once: Ctrl-C does not wait for the report
            raise
        finally:
            close_all(recorders)

    def add(self, spec: EpisodeSpec) -> None:
        """Play one more episode, in the run that goes on."""
        self._scheduler.add([spec])

    def film(self, rows: Sequence[EpisodeRow], film_recorders: FilmRecorders) -> Filmed:
        """Film the chosen episodes that have no video yet, and show them on the page."""
        specs, filmed = self._filming.missing(rows), Filmed()
        if specs:
            if not self._filming.worth_it:
                note = "no videos: the policy sees no images; --video.episodes=1 films it"
                return Filmed(note=note)
            try:
                environment = self._filming.environment()
            except UsageError as error:
                return Filmed(note=f"no videos: {error}")
            engine, watching = self._engine_for(specs, environment), film_recorders(len(specs))
            try:
                filmed.warnings = film(
                    engine, self._filming.camera(), rows, watching, self._remembered.actions
                )
            finally:
                try:
                    close_all(watching)
                finally:
                    write_page(self._folder)
        videos = videos_in(self._folder)
        filmed.videos = sum(row.video in videos for row in rows)
        if not filmed.videos and not filmed.warnings:
            filmed.note = self._filming.why_nothing(rows)
        return filmed

    def _engine_for(
        self, specs: Sequence[EpisodeSpec], environment: Mapping[str, str], begun: int = -1
    ) -> Engine:
        """Return an engine that has ``specs`` to run: the one there is, if its workers can."""
        if self._engine is not None and environment == self._environment:
            self._scheduler.add(specs)
            return self._engine
        self._end_workers()
        rules, n_workers = self._rules, self._players.workers(len(specs))
        setup = self._players.engine_setup(
            self._policy_thread(n_workers), n_workers, in_process=rules.in_process
        )
        worker = replace(setup.worker, environment=dict(environment), draw_slots=rules.draw_slots)
        setup = replace(setup, worker=worker, watchdog_s=rules.watchdog_s)
        several = self._players.policy.spec.in_flight > 1  # each is asked about one, on its own
        bounds = replace(rules.bounds, max_batch=1 if several else n_workers, begun=begun)
        self._scheduler, self._environment = Scheduler(specs, bounds), environment
        self._engine = Engine(setup, self._scheduler)
        return self._engine

    def _policy_thread(self, n_workers: int = 1) -> Inference:
        """Return what all calls into the policy go through, from the first to its end."""
        if self._inference is None:
            self._inference = self._made_inference(n_workers)
        return self._inference

    def _made_inference(self, n_workers: int) -> Inference:
        policy, action = self._players.policy, self._players.action
        if self._rules.in_process:
            return InlineInference(policy, action)
        threads = min(policy.spec.in_flight, n_workers)
        if threads == 1:
            return ThreadInference(policy, action)
        return ReplicatedInference([ThreadInference(policy, action) for _ in range(threads)])

    def _run_lockstep(self, specs: Sequence[EpisodeSpec], recorders: Sequence[Recorder]) -> None:
        from proctor.evaluation.lockstep import Lockstep

        players = self._players
        Lockstep(
            make_benchmark=players.worker.make_benchmark,
            policy=players.policy.spec,
            inference=self._policy_thread(),
            n_envs=players.workers(len(specs)),
            use_async_envs=not self._rules.in_process,
            environment=players.worker.environment,
            recorders=recorders,
            latency_steps=players.worker.latency_steps,
        ).run(specs)

    def _end_workers(self) -> None:
        engine, self._engine = self._engine, None  # closed once, also when that fails
        if engine is not None:
            engine.close()
