"""A session of blind trials on a robot: order, journals, stop rule, results.

Every policy has its own run folder, and every judged trial is on disk before the next one begins.
An interrupted session is completed by another one in the same random order, from the same pose.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec

from proctor.callbacks.journal_writer import EffortLog, JournalWriter
from proctor.control.policy.driver import PolicyDriver
from proctor.control.terminal.live_page import LivePage
from proctor.control.terminal.reference_pictures import ReferencePictures
from proctor.control.trials.loop import TrialLoop, TrialRun
from proctor.control.trials.plan import (
    Trial,
    TrialStopping,
    draw_trials,
    remaining_trials,
    trial_spec,
)
from proctor.control.trials.records import (
    POSE_TOLERANCE,
    PolicyUnderTest,
    errored_record,
    judged_record,
    measured_pose,
    robot_run_record,
    trial_start,
)
from proctor.control.trials.verdicts import Briefing, Judge
from proctor.errors import ProctorError, RobotError, UsageError, strip_control_codes
from proctor.report.run.contamination import contamination_of
from proctor.report.run.history import history_of
from proctor.report.run.page import write_page
from proctor.report.run.stopped import end_reason
from proctor.report.run.summary import eval_info
from proctor.report.run.warnings import run_warnings
from proctor.robots.base import VELOCITIES, Robot, RobotObservation
from proctor.runs.disk_errors import ignoring_later_disk_errors
from proctor.runs.folder import EVAL_INFO_FILE, RunRecord, write_json, write_run_file
from proctor.runs.journal import JOURNAL_FILE, EpisodeRecord, read_journal, videos_in
from proctor.runs.jsonl import truncate_partial_line
from proctor.runs.labels import LabelRecord, append_label
from proctor.runs.latency import bucket_of, latency_summary
from proctor.runs.records import FiniteFloat, RunProgress
from proctor.runs.sessions import read_session_totals
from proctor.system import clock
from proctor.system.files import read_regular_file
from proctor.types import EpisodeSpec, Start, Task

SEALED_FILE = "sealed.json"
_ENTROPY_BYTES = 16

Pose = dict[str, FiniteFloat]


class SealedSession(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the sealed file."""

    entropy: Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{2 * _ENTROPY_BYTES}}}$")]
    """Draws the order of the trials; hexadecimal."""
    target: Pose | None = None
    """Where the robot stood before the first trial; it returns there before every trial."""
    start: Pose | None = None
    """The measured pose at the start of the first trial, which all other starts must have."""

    @property
    def order_seed(self) -> int:
        """The entropy as a number."""
        return int(self.entropy, 16)

    def write(self, root: Path) -> None:
        """Write the file atomically."""
        write_run_file(root / SEALED_FILE, msgspec.json.encode(self) + b"\n")


def new_session() -> SealedSession:
    """Draw the order of new trials."""
    return SealedSession(entropy=secrets.token_hex(_ENTROPY_BYTES))


def read_session(root: Path) -> SealedSession:
    """Return the session that ``--resume`` goes on with."""
    file = root / SEALED_FILE
    try:
        return msgspec.json.decode(read_regular_file(file), type=SealedSession)
    except (OSError, msgspec.DecodeError) as error:
        what = "is gone" if isinstance(error, FileNotFoundError) else f"is damaged: {error}"
        raise UsageError(
            f"--resume: {file} {what}; the order and the pose of its trials are unknown, so begin "
            "new ones in another --output_dir",
            code="run.damaged",
        ) from None


def largest_deviation(
    start: Mapping[str, float], measured: Mapping[str, float]
) -> tuple[str, float]:
    """Return the channel that is farthest from the start, and how far; same names in both."""
    return max(
        ((name, abs(measured[name] - start[name])) for name in start), key=lambda one: one[1]
    )


_STARTS = 2
"""Times that a robot returns to its first pose before a trial is given up."""


@dataclass
class _OpenRun:
    """The run folder of one policy during a session."""

    tested: PolicyUnderTest
    record: RunRecord
    journal: JournalWriter
    driver: PolicyDriver
    done: dict[int, EpisodeRecord]
    """Judged trials by block."""
    effort: RunProgress = field(default_factory=lambda: RunProgress(0.0, 0, 0, 0))


@dataclass(frozen=True)
class SessionOptions:
    """What a session needs besides robot, judge and policies."""

    root: Path
    """The folder of all run folders; with one policy, its run folder."""
    task: Task
    live: LivePage
    """Shows the trials; it never learns which policy acts."""


class TrialSession:
    """Runs the missing trials of all policies on a connected robot."""

    def __init__(
        self,
        policies: Sequence[PolicyUnderTest],
        robot: Robot,
        judge: Judge,
        loop: TrialLoop,
        options: SessionOptions,
    ) -> None:
        self._policies = policies
        self._config = policies[0].config
        self._robot = robot
        self._judge = judge
        self._loop = loop
        self._options = options
        self._runs: list[_OpenRun] = []
        self._sealed = new_session()
        names = [tested.name for tested in policies]
        self._stopping = TrialStopping(self._config, options.task, names)
        self._pictures = ReferencePictures(options.root)

    @property
    def decision(self) -> str | None:
        """Why the trials stopped early; None: they did not."""
        return self._stopping.decision

    def run(self) -> None:
        """Run the trials that are missing, until all are judged or the stop rule decides.

        Raises:
            UsageError: a run folder holds other trials.
            RobotError: the robot failed; its trial does not count, and --resume repeats it.
            Stopped: a person ended the session; --resume continues it.
        """
        with contextlib.ExitStack() as stack:
            for tested in self._policies:
                stack.enter_context(tested.folder.locked())
            self._open_runs(stack)
            self._seal(self._dry_run())
            try:
                self._run_trials()
            finally:
                with ignoring_later_disk_errors():
                    self._write_results()

    def _open_runs(self, stack: contextlib.ExitStack) -> None:
        """Check all folders before the first one is written."""
        task, n = self._options.task, len(self._policies)
        records = []
        for tested in self._policies:
            record = robot_run_record(tested, self._robot, task, self._judge, n)
            records.append(tested.folder.session_record(record, resume=tested.config.resume))
            self._check_planned(tested)
        if any(read_journal(tested.folder.path).rows for tested in self._policies):
            self._sealed = read_session(self._options.root)
        for tested, record in zip(self._policies, records, strict=True):
            rows = read_journal(tested.folder.path).rows
            tested.folder.begin(record)
            truncate_partial_line(tested.folder.path / JOURNAL_FILE)
            journal = JournalWriter(tested.folder.path, sync_every_s=0)
            stack.callback(journal.close)
            done = {row.episode_index: row for row in rows if row.outcome.counts}
            driver = PolicyDriver(tested.made)
            self._runs.append(_OpenRun(tested, record, journal, driver, done))
        for block in range(self._config.eval.n_episodes):
            for number, run in enumerate(self._runs):
                if block in run.done:
                    self._stopping.add(block, number, run.done[block].outcome)

    def _check_planned(self, tested: PolicyUnderTest) -> None:
        for row in read_journal(tested.folder.path).rows:
            spec = trial_spec(self._options.task, row.episode_index, self._config.seed)
            odd = row.key != spec.key or row.disagreement(spec) is not None
            if odd or row.episode_index >= self._config.eval.n_episodes:
                raise UsageError(
                    f"--resume: {tested.folder.path} holds trial {row.episode_index}, which is not "
                    "planned now; repeat --task and --seed, and at least as many "
                    "--eval.n_episodes",
                    code="run.unplanned-episode",
                )

    def _dry_run(self) -> RobotObservation:
        """Ask every policy once, before anything moves; return the observation."""
        observation = self._robot.get_observation()
        spec = trial_spec(self._options.task, 0, self._config.seed)
        for run in self._runs:
            run.driver.dry_run(observation, spec)
        return observation

    def _seal(self, observation: RobotObservation) -> None:
        """Keep the order and the first pose of new trials; a resumed session has them."""
        if self._sealed.target is None:
            moved = self._robot.action_features.items()
            positions = [name for name, unit in moved if unit not in VELOCITIES]
            target = {name: float(observation[name]) for name in positions if name in observation}
            self._sealed = msgspec.structs.replace(self._sealed, target=target)
            self._sealed.write(self._options.root)

    def _run_trials(self) -> None:
        planned = self._config.eval.n_episodes
        trials = draw_trials(len(self._runs), planned, self._sealed.order_seed)
        done = {(block, n) for n, run in enumerate(self._runs) for block in run.done}
        while True:
            decided = self._stopping.decision is not None
            left = remaining_trials(trials, done, decided=decided)
            if not left:
                return
            trial = left[0]
            if self._run_trial(trial, len(trials)):
                done.add((trial.block, trial.policy))

    def _run_trial(self, trial: Trial, total: int) -> bool:
        """Run one trial and write it; return whether it counts."""
        run = self._runs[trial.policy]
        spec = trial_spec(self._options.task, trial.block, self._config.seed)
        done = sum(len(one.done) for one in self._runs)
        self._options.live.say(
            headline=f"trial {trial.number + 1}, scene {trial.block + 1}", done=done, planned=total
        )
        self._options.live.set_references(self._pictures.read(trial.block, self._robot))
        started, began = clock.now(), time.perf_counter()
        start: Start | None = None
        try:
            start = trial_start(self._robot, self._prepare(trial, total, spec), spec)
            started, prepared_s = clock.now(), time.perf_counter() - began
            ended = self._loop.run(run.driver, spec)
        except ProctorError as error:
            text = strip_control_codes(str(error))
            row = errored_record(spec, text, started, clock.now())
            run.journal.write(replace(row, start=start))
            raise
        row = replace(judged_record(spec, ended, started, clock.now(), prepared_s), start=start)
        self._write(run, row, ended)
        if row.outcome.counts:
            run.done[trial.block] = row
            self._stopping.add(trial.block, trial.policy, row.outcome)
        return row.outcome.counts

    def _prepare(self, trial: Trial, total: int, spec: EpisodeSpec) -> RobotObservation:
        """Return to the first pose, reset the scene, wait for the start, and observe it."""
        is_new = not self._pictures.has(trial.block)
        briefing = Briefing(
            number=trial.number + 1,
            of_at_most=total,
            scene=trial.block + 1,
            is_new_scene=is_new,
            instruction=spec.task.instruction,
        )
        for number in range(_STARTS):
            self._return(spec)
            briefing = replace(briefing, is_repeat=number > 0)
            observation = self._loop.wait_for_start(briefing)
            if self._is_at_start(observation):
                break
        else:
            raise RobotError(self._off_start(observation), code="robot.start-pose")
        if self._sealed.start is None:
            start = measured_pose(self._robot, observation)
            self._sealed = msgspec.structs.replace(self._sealed, start=start)
            self._sealed.write(self._options.root)
        if is_new:
            self._pictures.store(trial.block, self._robot, observation)
        return observation

    def _return(self, spec: EpisodeSpec) -> None:
        """Return the robot to its first pose, and reset a simulated scene."""
        seconds, scene = self._config.eval.return_time_s, self._robot.scene
        if seconds:
            target = self._sealed.target or {}
            # A scene's reset carries the arm elsewhere.
            reached = self._is_at_start if scene is None else (lambda observation: True)
            self._loop.move_to(target, seconds, self._config.fps, reached)
        if scene is not None:
            scene.reset(spec.seed)

    def _is_at_start(self, observation: RobotObservation) -> bool:
        """Tell whether the robot has the pose of the first trial's start, if it returns there."""
        start = self._sealed.start
        if not start or not self._config.eval.return_time_s:
            return True
        measured = measured_pose(self._robot, observation)
        return largest_deviation(start, measured)[1] <= POSE_TOLERANCE

    def _off_start(self, observation: RobotObservation) -> str:
        measured = measured_pose(self._robot, observation)
        name, far = largest_deviation(self._sealed.start or {}, measured)
        return (
            f"{name} is {far:.1f} from its value at the start of the first trial (at most "
            f"{POSE_TOLERANCE:g}): clear the robot's way, or give it more --eval.return_time_s"
        )

    def _write(self, run: _OpenRun, row: EpisodeRecord, ended: TrialRun) -> None:
        run.journal.write(row)
        verdict = ended.verdict
        if verdict.reason and row.outcome.counts:
            label = LabelRecord(row.suite, row.task_id, row.episode_index, [verdict.reason])
            append_label(run.tested.folder.path, label)
        calls = dict(run.effort.calls)
        for seconds in ended.infer_s:
            bucket = bucket_of(seconds)
            calls[bucket] = calls.get(bucket, 0) + 1
        run.effort = replace(
            run.effort,
            elapsed_s=run.effort.elapsed_s + ended.seconds,
            steps=run.effort.steps + ended.steps,
            batches=run.effort.batches + len(ended.infer_s),
            batched_requests=run.effort.batched_requests + len(ended.infer_s),
            infer_s=run.effort.infer_s + sum(ended.infer_s),
            calls=calls,
        )

    def _write_results(self) -> None:
        for run in self._runs:
            path = run.tested.folder.path
            effort = EffortLog(path)
            effort.on_progress(run.effort)
            effort.close()
            rows, history = read_journal(path).rows, history_of(run.record)
            planned = self._config.eval.n_episodes
            how, sessions = history.monitored, run.record.sessions
            info = eval_info(rows, planned, sessions, self.decision, how, videos_in(path))
            totals = read_session_totals(path)
            trained_on = contamination_of(path, rows, how.overall)
            info["proctor"] |= {
                "contamination": None if trained_on is None else trained_on.to_json(),
                "infer_s": totals.infer_s,
                "policy_latency": latency_summary(totals.calls),
                "warnings": run_warnings(rows, run.record),
                "history": history.to_json(),
                "session": len(run.record.sessions),
                "ended": end_reason(sys.exception()),
            }
            write_json(path / EVAL_INFO_FILE, info)
            write_page(path)
