"""The session of one process on a run: runs the missing episodes, then records videos.

One engine does both, so that open simulators are reused for the videos.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Self

from proctor.callbacks.base import Callback, close_all
from proctor.callbacks.early_stopping import EarlyStopping
from proctor.callbacks.journal_writer import EffortLog, JournalWriter
from proctor.callbacks.staged_episodes import RecordingOptions
from proctor.callbacks.state_writer import StateWriter
from proctor.engine.rollout_settings import RolloutSettings
from proctor.errors import UsageError
from proctor.evaluation.executor import Executor, LocalExecutor
from proctor.evaluation.plan import RemainingEpisodes
from proctor.evaluation.video_replay import (
    ActionHistory,
    ReplayedVideos,
    VideoReplay,
    record_videos,
)
from proctor.runs.disk_errors import ignoring_later_disk_errors
from proctor.runs.journal import EpisodeRecord, videos_in
from proctor.runs.videos import remove_unfinished
from proctor.system.platform.environment import DRAWER_VARIABLE
from proctor.types import EpisodeSpec

MakeVideoCallbacks = Callable[[int], list[Callback]]
"""Makes the callbacks of a video phase with so many episodes."""


class Session:
    """Holds the engine of a run from its first episode to its last video."""

    def __init__(
        self,
        settings: RolloutSettings,
        executor: Executor,
        video_replay: VideoReplay,
        recording: RecordingOptions | None = None,
        judge: Callback | None = None,
    ) -> None:
        self._settings = settings
        self._judge = judge
        self._video_replay = video_replay
        self._recording = recording
        self._folder = video_replay.folder
        self._executor = executor
        self._action_history = ActionHistory(video_replay.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self._tidy_up)
            closing.callback(self._executor.close)
            closing.callback(self._log_drawing)

    def _log_drawing(self) -> None:
        """Log where the drawing process of ``--env.renderer=warp`` has spent its time."""
        address = self._settings.environment.get(DRAWER_VARIABLE)
        if address is not None:
            from proctor.benchmarks.mujoco.drawing_process import describe_drawing

            with contextlib.suppress(OSError), (self._folder / "workers.log").open("a") as log:
                log.write(f"{describe_drawing(address)}\n")

    def _tidy_up(self) -> None:
        remove_unfinished(self._folder)
        log = self._folder / "workers.log"
        if log.exists() and log.stat().st_size == 0:
            log.unlink()

    def run(
        self, rest: RemainingEpisodes, outputs: Sequence[Callback], early_stopping: EarlyStopping
    ) -> None:
        """Run ``rest``; the journal receives every finished episode before other callbacks do.

        Only the judge comes first, since the journal keeps its verdict.
        """
        callbacks: list[Callback] = [
            *([] if self._judge is None else [self._judge]),
            JournalWriter(self._folder),
            early_stopping,
            EffortLog(self._folder),
            StateWriter(self._folder),
            self._action_history,
            *outputs,
        ]
        try:
            if self._settings.flags.lockstep:
                self._run_lockstep(rest.specs, callbacks)
            else:
                environment = self._settings.environment
                engine = self._executor.engine_for(rest.specs, environment, rest.last_begun)
                while not self._executor.scheduler.done:  # callbacks may add episodes at the end
                    engine.run(callbacks, lambda: early_stopping.decided, recording=self._recording)
        except BaseException:
            self._executor.end_workers()  # at once: Ctrl-C does not wait for the page
            raise
        finally:
            with ignoring_later_disk_errors():
                close_all(callbacks)

    def add(self, spec: EpisodeSpec) -> None:
        """Add one more episode to the running session."""
        self._executor.scheduler.add([spec])

    def record_videos(
        self, rows: Sequence[EpisodeRecord], make_video_callbacks: MakeVideoCallbacks
    ) -> ReplayedVideos:
        """Record videos of the selected episodes without one, and update the page."""
        specs, filmed = self._video_replay.missing(rows), ReplayedVideos()
        if specs:
            if not self._video_replay.enabled:
                note = "no videos: the policy sees no images; --video.episodes=1 films it"
                return ReplayedVideos(note=note)
            try:
                environment = self._video_replay.environment()
            except UsageError as error:
                return ReplayedVideos(note=f"no videos: {error}")
            engine = self._executor.engine_for(specs, environment)
            watching = make_video_callbacks(len(specs))
            try:
                filmed.warnings = record_videos(
                    engine,
                    self._video_replay.camera(),
                    rows,
                    watching,
                    self._action_history.actions,
                )
            finally:
                try:
                    close_all(watching)
                finally:
                    with ignoring_later_disk_errors():
                        from proctor.report.run.page import write_page

                        write_page(self._folder)
        videos = videos_in(self._folder)
        filmed.videos = sum(row.video in videos for row in rows)
        if not filmed.videos and not filmed.warnings:
            filmed.note = self._video_replay.empty_note(rows)
        return filmed

    def _run_lockstep(self, specs: Sequence[EpisodeSpec], callbacks: Sequence[Callback]) -> None:
        from proctor.evaluation.lockstep import Lockstep

        settings, executor = self._settings, self._executor
        assert isinstance(executor, LocalExecutor)
        Lockstep(
            settings=settings,
            policy=executor.policy.spec,
            inference=executor.inference(),
            n_envs=executor.n_workers(len(specs)),
            callbacks=callbacks,
        ).run(specs)
