"""What one process does for a run: the episodes that are missing, then the videos.

Both are played by one engine, so that simulators which are open stay open for the camera.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Self

from proctor.config.sections import SchedulerKind
from proctor.errors import UsageError
from proctor.evaluation.filming import Filmed, Filming, Remembered, film
from proctor.evaluation.plan import Rest
from proctor.evaluation.prepared import Players
from proctor.evaluation.stage import Here, SessionRules, Stage
from proctor.recorders.base import Recorder, close_all
from proctor.recorders.on_disk import EffortLog, Journal
from proctor.recorders.stopper import Stopper
from proctor.recorders.takes import Recording
from proctor.report.page import write_page
from proctor.runs.journal import EpisodeRow, videos_in
from proctor.runs.kept import after_the_first
from proctor.runs.videos import remove_unfinished
from proctor.types import EpisodeSpec

FilmRecorders = Callable[[int], list[Recorder]]
"""Makes what watches the filming of so many episodes."""


class Session:
    """Holds the engine of a run from its first episode to its last video."""

    def __init__(
        self,
        players: Players,
        rules: SessionRules,
        stage: Stage,
        filming: Filming,
        recording: Recording | None = None,
    ) -> None:
        self._players = players
        self._rules = rules
        self._filming = filming
        self._recording = recording
        self._folder = filming.folder
        self._stage = stage
        self._remembered = Remembered(filming.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self._tidy_up)
            closing.callback(self._stage.close)

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
                engine = self._stage.engine_for(rest.specs, environment, rest.begun)
                while not self._stage.scheduler.done:  # what a recorder asks for in the end too
                    engine.run(recorders, lambda: stopper.decided, recording=self._recording)
        except BaseException:
            self._stage.end_workers()  # at once: Ctrl-C does not wait for the report
            raise
        finally:
            with after_the_first():
                close_all(recorders)

    def add(self, spec: EpisodeSpec) -> None:
        """Play one more episode, in the run that goes on."""
        self._stage.scheduler.add([spec])

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
            engine = self._stage.engine_for(specs, environment)
            watching = film_recorders(len(specs))
            try:
                filmed.warnings = film(
                    engine, self._filming.camera(), rows, watching, self._remembered.actions
                )
            finally:
                try:
                    close_all(watching)
                finally:
                    with after_the_first():
                        write_page(self._folder)
        videos = videos_in(self._folder)
        filmed.videos = sum(row.video in videos for row in rows)
        if not filmed.videos and not filmed.warnings:
            filmed.note = self._filming.why_nothing(rows)
        return filmed

    def _run_lockstep(self, specs: Sequence[EpisodeSpec], recorders: Sequence[Recorder]) -> None:
        from proctor.evaluation.lockstep import Lockstep

        players, stage = self._players, self._stage
        assert isinstance(stage, Here)
        Lockstep(
            make_benchmark=players.worker.make_benchmark,
            policy=players.policy.spec,
            inference=stage.policy_thread(),
            n_envs=players.workers(len(specs)),
            use_async_envs=not self._rules.in_process,
            environment=players.worker.environment,
            recorders=recorders,
            latency_steps=players.worker.latency_steps,
        ).run(specs)
