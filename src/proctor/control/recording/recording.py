"""Record episodes on a robot: takes, reset phases, takes again, until there are enough.

Keys and phases are LeRobot's. An episode is saved when it ends, not after the reset phase: a kill
loses at most the episode that is running. The key for another take in the reset phase removes the
saved episode again. Esc, a stop signal and a failing device save the running episode too, if it
has a frame; the recording log marks it as partial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from proctor.callbacks.staged_episodes import EpisodeFilter
from proctor.control.loop.frame_queue import FrameQueue
from proctor.control.loop.session import EmergencyStop
from proctor.control.recording.log import EpisodeEnd, EpisodeReport, RecordingLog
from proctor.control.recording.recorded_episode import (
    ControlLoop,
    EpisodeDecision,
    RecordedEpisode,
    ResetEnd,
    RobotEpisodeRecorder,
    run_reset_phase,
)


@dataclass(frozen=True)
class RecordingPlan:
    """What to record in one session."""

    task: str
    n_episodes: int
    episode_time_s: float
    reset_time_s: float
    keep: EpisodeFilter = EpisodeFilter.ALL
    max_takes: int | None = None
    """Takes after which the session ends, kept or not; None for no limit."""
    first_seed: int = 0
    """Seed of the first take in a simulated scene; each further take has the next one."""


@dataclass
class RecordingResult:
    """What a session recorded."""

    wanted: int
    episodes: dict[int, EpisodeReport] = field(default_factory=dict)
    """Number in the dataset -> report, of the episodes that were saved and not removed."""
    takes: int = 0
    failed_takes: int = 0
    """Takes that were thrown away because the simulated scene did not report success."""

    @property
    def complete(self) -> bool:
        """Whether all wanted episodes are recorded."""
        return len(self.episodes) >= self.wanted

    @property
    def frames(self) -> int:
        """Frames of the saved episodes."""
        return sum(report.frames for report in self.episodes.values())

    @property
    def partial(self) -> dict[int, EpisodeReport]:
        """The episodes that were cut short."""
        return {n: report for n, report in self.episodes.items() if report.ended_by.is_partial}


Announce = Callable[[str], None]
"""Shows one line to the operator."""


class RecordingRun:
    """Records the episodes of a plan; connected devices are driven until ``run`` returns."""

    def __init__(
        self,
        loop: ControlLoop,
        queue: FrameQueue,
        log: RecordingLog,
        plan: RecordingPlan,
        announce: Announce = lambda line: None,
    ) -> None:
        self._loop, self._queue, self._log, self._plan = loop, queue, log, plan
        self._announce = announce
        self._recorder = RobotEpisodeRecorder(loop, queue, plan.task)
        self._saved: list[EpisodeReport] = []
        """Reports of the episodes handed over for saving, in order."""
        self.result = RecordingResult(plan.n_episodes)

    def run(self) -> None:
        """Record until the plan is done, or the operator or a signal stops it.

        When it returns or raises, all frames are in the queue; the caller closes the devices and
        then waits for the queue, so motors do not stay on while videos are encoded.
        """
        try:
            while self._wants_more():
                if not self._record_next():
                    return
        except BaseException as error:
            self._save_partial(_cause(error))
            raise

    def _wants_more(self) -> bool:
        takes = self._plan.max_takes
        return len(self._saved) < self._plan.n_episodes and (
            takes is None or self.result.takes < takes
        )

    def _record_next(self) -> bool:
        """Record a take and reset the scene after it; return whether the session goes on."""
        self._reset_scene()
        number = len(self._saved) + 1
        self._announce(f"recording episode {number} of {self._plan.n_episodes}")
        take = self._recorder.record(self._plan.episode_time_s, self._seed)
        self.result.takes += 1
        saved = self._settle(take)
        if take.ends_session:
            return False
        again = take.verdict is EpisodeDecision.AGAIN
        if self._loop.robot.scene is not None or not (again or self._wants_more()):
            return True
        self._announce("reset the scene" + (" to record the episode again" if again else ""))
        ended = run_reset_phase(self._loop, self._plan.reset_time_s)
        if ended is ResetEnd.AGAIN and saved:
            self._saved.pop()
            self._loop.count(len(self._saved))
            self._queue.remove_last()
            self._queue.run(self._forget_last)
        return ended is not ResetEnd.STOP

    @property
    def _seed(self) -> int:
        return self._plan.first_seed + self.result.takes

    def _reset_scene(self) -> None:
        scene = self._loop.robot.scene
        if scene is not None:
            scene.reset(self._seed)

    def _settle(self, take: RecordedEpisode) -> bool:
        """Save or discard a take; return whether it was saved."""
        report = take.report
        failed = self._plan.keep is EpisodeFilter.SUCCESS and not report.success
        if report.frames and take.verdict is EpisodeDecision.KEEP and not failed:
            self._save(report)
            return True
        self.result.failed_takes += failed and take.verdict is EpisodeDecision.KEEP
        self._queue.discard()
        self._recorder.forget()
        return False

    def _save(self, report: EpisodeReport) -> None:
        self._recorder.forget()
        self._saved.append(report)
        self._loop.count(len(self._saved))
        self._queue.save(lambda number: self._on_saved(number, report))

    def _on_saved(self, number: int, report: EpisodeReport) -> None:
        """Note an episode that is on the disk; runs in the queue's thread."""
        self._log.add(number, report)
        self.result.episodes[number] = report

    def _forget_last(self) -> None:
        self.result.episodes.popitem()

    def _save_partial(self, ended_by: EpisodeEnd) -> None:
        """Save the running take, if it has a frame and failures are kept."""
        if self._recorder.frames and self._plan.keep is EpisodeFilter.ALL:
            self._save(self._recorder.report(ended_by, self._seed))


def _cause(error: BaseException) -> EpisodeEnd:
    if isinstance(error, EmergencyStop):
        return EpisodeEnd.STOP
    return EpisodeEnd.SIGNAL if isinstance(error, KeyboardInterrupt) else EpisodeEnd.ERROR
