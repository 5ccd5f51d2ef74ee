"""One recording, from config to dataset: runs episodes until every task has enough demonstrations.

Every task is run n times, and once more for each episode that is not kept. Which episodes run
depends only on how episodes end, and so does the content of the dataset.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from proctor.benchmarks.base import Benchmark
from proctor.benchmarks.training_starts import unpublished
from proctor.callbacks.base import Callback
from proctor.callbacks.dataset import DatasetCallback, OpenDataset
from proctor.callbacks.early_stopping import EarlyStopping
from proctor.callbacks.staged_episodes import EpisodeFilter
from proctor.config.recording import RecordConfig
from proctor.config.sections.evaluation import VideoSettings
from proctor.errors import UsageError
from proctor.evaluation.cluster.run import make_executor
from proctor.evaluation.demonstrations import Demonstrations, check_recording, pending_episodes
from proctor.evaluation.plan import RemainingEpisodes, check_planned
from proctor.evaluation.preparing import make_run_record, prepare_context
from proctor.evaluation.rollout_context import RolloutContext, require_judged
from proctor.evaluation.session import Session
from proctor.evaluation.video_replay import VideoReplay
from proctor.runs.disk_errors import explaining_disk_errors
from proctor.runs.folder import RUN_FILE, RunFolder
from proctor.runs.journal import JOURNAL_FILE, EpisodeRecord, read_journal
from proctor.runs.jsonl import truncate_partial_line
from proctor.runs.path_checks import refuse_run_inside_dataset
from proctor.system.files import recover_swap
from proctor.types import EpisodeKey, EpisodeSpec, Outcome, Task

_TaskKey = tuple[str, int]


@dataclass(frozen=True)
class RecordedCounts:
    """How many demonstrations are recorded: in the dataset, and staged in the run folder."""

    wanted: int
    """Demonstrations to keep per task."""
    finished: Mapping[_TaskKey, int]
    """Recorded demonstrations of each task, at most ``wanted``."""
    in_dataset: int

    @property
    def total(self) -> int:
        """Recorded demonstrations of all tasks."""
        return sum(self.finished.values())

    @property
    def staged(self) -> int:
        """Finished demonstrations that wait in the run folder for their turn."""
        return self.total - self.in_dataset


MakeRecordingCallbacks = Callable[[RecordedCounts, Callable[[], int]], list[Callback]]
"""Makes the callbacks of a session, given the demonstrations recorded before, and a function that
returns the number of episodes in the dataset."""


class RecordingInterrupted(KeyboardInterrupt):
    """A signal ended a recording; ``counts`` tells what is recorded."""

    def __init__(self, counts: RecordedCounts, *args: object) -> None:
        super().__init__(*args)
        self.counts = counts


@dataclass(frozen=True)
class TaskRecord:
    """The counts of one recorded task."""

    name: str
    kept: int
    attempts: int
    failed: int
    errors: int
    frames: int


@dataclass(frozen=True)
class RecordingResult:
    """A dataset after a recording session."""

    root: Path
    wanted: int
    """Demonstrations to keep per task."""
    tasks: list[TaskRecord]
    seconds: float
    """Duration of this session."""
    log: Path
    """Output of the simulators."""
    note: str | None = None
    """Why the dataset's files were not merged; None if they were."""

    @property
    def path(self) -> Path:
        """The folder of the dataset."""
        return self.root

    @property
    def complete(self) -> bool:
        """Whether every task has enough demonstrations."""
        return all(task.kept >= self.wanted for task in self.tasks)

    def __str__(self) -> str:
        kept, frames = sum(t.kept for t in self.tasks), sum(t.frames for t in self.tasks)
        planned = self.wanted * len(self.tasks)
        return f"{kept:,} of {planned:,} demonstrations, {frames:,} frames"

    def __repr__(self) -> str:
        return f"RecordingResult({self}, path={str(self.root)!r})"


def prepare(config: RecordConfig) -> tuple[RolloutContext[RecordConfig], Demonstrations]:
    """Check that everything ``config`` names exists, matches and can be recorded.

    Runs no simulator and writes nothing.
    """
    folder = RunFolder(config.run_folder)
    _check_destination(config, folder)
    context = prepare_context(config, folder, range(config.record.n_episodes))
    if config.record.kept is EpisodeFilter.SUCCESS:
        require_judged(context.benchmark, "successes are kept (or --record.keep=all)")
    demonstrations = check_recording(context.benchmark, config.dataset, config.record, folder.path)
    demonstrations.environment(context.policy.spec.inputs)
    return context, demonstrations


def _check_destination(config: RecordConfig, folder: RunFolder) -> None:
    """Refuse folders that other files are in, or a dataset to resume that does not exist."""
    root = config.dataset.folder
    if config.resume:
        recover_swap(root)
    exists = root.exists()
    if exists and not config.resume:
        raise UsageError(
            f"{root} exists; add --resume to record what is missing in it, or choose another "
            "--dataset.root",
            code="dataset.exists",
        )
    refuse_run_inside_dataset(folder.path, root, "--dataset.root")
    if not config.resume:
        folder.refuse_foreign_content()
    if config.resume and folder.read() is None:
        raise UsageError(
            f"--resume: {folder.path} holds no recording to go on with", code="run.missing"
        )
    if config.resume and not exists and read_journal(folder.path).rows:
        raise UsageError(
            f"--resume: the dataset {root} is gone; remove {folder.path} to record it anew",
            code="dataset.missing",
        )


def run_recording(
    context: RolloutContext[RecordConfig],
    demonstrations: Demonstrations,
    given: dict[str, Any],
    make_callbacks: MakeRecordingCallbacks = lambda before, in_dataset: [],
) -> RecordingResult:
    """Run the missing episodes, and append the kept ones to the dataset.

    Raises:
        UsageError: the folder holds another recording.
        RunFolderError: the folder is in use, or it or the dataset cannot be written.
        RecordingInterrupted: after everything finished is on disk.
    """
    config, folder, began = context.config, context.folder, time.monotonic()
    protocol = context.protocol()
    with folder.locked(), explaining_disk_errors(partial(_kept_text, context)):
        record = folder.session_record(
            make_run_record(context, protocol, given), resume=config.resume
        )
        rows = {row.key: row for row in read_journal(folder.path).rows}
        attempts = Attempts(context.benchmark, config, rows.values())
        check_planned(attempts.plan(), list(rows.values()), folder.path)
        folder.begin(record)  # nothing is refused from here on
        truncate_partial_line(folder.path / JOURNAL_FILE)
        with demonstrations.open(folder.path, protocol) as dataset:
            recording = _RecordingSession(context, demonstrations, dataset)
            try:
                note = _play(recording, attempts, rows, make_callbacks)
            except KeyboardInterrupt as stop:
                raise RecordingInterrupted(recording.counts(), *stop.args) from None
            recorded = _task_records(context, dataset.ledger.keys)
    return RecordingResult(
        root=demonstrations.root,
        wanted=config.record.n_episodes,
        tasks=recorded,
        seconds=time.monotonic() - began,
        log=folder.path / "workers.log",
        note=note,
    )


def _kept_text(context: RolloutContext[RecordConfig], mend: str) -> str:
    """Return what is kept of a recording that a full disk ended, and how to go on."""
    if not (context.folder.path / RUN_FILE).exists():
        return f"nothing was recorded: {mend}, then run again"
    kept = f"the dataset {context.config.dataset.folder} is kept"
    return f"{kept}, and finished episodes: {mend}, then run again with --resume"


class Attempts:
    """Plans the episodes to run: n of every task, and one more for each that is not kept."""

    def __init__(
        self, benchmark: Benchmark, config: RecordConfig, rows: Collection[EpisodeRecord]
    ) -> None:
        """Continue after ``rows``; errored episodes of earlier sessions run again."""
        self._benchmark, self._seed = benchmark, config.seed
        self._published = config.record.published or any(
            row.init_state is not None
            for row in rows  # a recording keeps its kind of starts
        )
        self._most, keep = config.record.attempts, config.record.kept
        lost: Counter[_TaskKey] = Counter()
        n_run: dict[_TaskKey, int] = {}
        for row in rows:
            task = row.key[:2]
            lost[task] += row.outcome.counts and not keep.keeps(row.outcome)
            n_run[task] = max(n_run.get(task, 0), row.episode_index + 1)
        wanted = config.record.n_episodes
        self._next = {
            task.key: max(min(wanted + lost[task.key], self._most), n_run.get(task.key, 0))
            for task in benchmark.tasks()
        }

    def plan(self) -> list[EpisodeSpec]:
        """List the episodes planned so far, task by task."""
        return [
            self._spec(task, index)
            for task in self._benchmark.tasks()
            for index in range(self._next[task.key])
        ]

    def another(self, task: Task) -> EpisodeSpec | None:
        """Plan one more episode of ``task``; None if it had the maximum number of attempts."""
        index = self._next[task.key]
        if index >= self._most:
            return None
        self._next[task.key] += 1
        return self._spec(task, index)

    def _spec(self, task: Task, index: int) -> EpisodeSpec:
        spec = self._benchmark.spec(task, index, self._seed)
        return spec if self._published else unpublished(self._benchmark, spec)


@dataclass(frozen=True)
class _RecordingSession:
    """The context of a recording, its options and its open dataset."""

    context: RolloutContext[RecordConfig]
    demonstrations: Demonstrations
    dataset: OpenDataset

    def session(self) -> Session:
        """Return the session that runs and records episodes."""
        context, config = self.context, self.context.config
        environment = self.demonstrations.environment(context.policy.spec.inputs)
        settings = replace(context.settings(), environment=environment)
        video_replay = VideoReplay(
            settings=VideoSettings(episodes=0),
            benchmark=context.benchmark,
            policy=context.policy,
            plan=(),
            folder=context.folder.path,
        )
        folder = context.folder.path
        executor = make_executor(config, settings, context.policy, folder, context.protocol)
        return Session(settings, executor, video_replay, self.dataset.recording)

    def room(self) -> dict[_TaskKey, int]:
        """Return the number of demonstrations that the dataset still lacks of each task."""
        kept = Counter(key[:2] for key in self.dataset.ledger.keys)
        wanted = self.context.config.record.n_episodes
        return {task.key: wanted - kept[task.key] for task in self.context.benchmark.tasks()}

    def counts(self) -> RecordedCounts:
        """Count the demonstrations of all sessions: in the dataset, or staged and complete."""
        config, recording = self.context.config, self.dataset.recording
        n_appended = self.dataset.writer.n_episodes  # the ledger may list one append more
        known = set(self.dataset.ledger.keys[:n_appended])
        finished: Counter[_TaskKey] = Counter(key[:2] for key in known)
        for row in read_journal(self.context.folder.path).rows:
            if row.key not in known and recording.keep.keeps(row.outcome):
                finished[row.key[:2]] += recording.staging_folder(row.key).is_dir()
        wanted = config.record.n_episodes
        capped = {task: min(n, wanted) for task, n in finished.items()}
        return RecordedCounts(wanted, capped, len(known))


def _play(
    recording: _RecordingSession,
    attempts: Attempts,
    rows: Mapping[EpisodeKey, EpisodeRecord],
    make_callbacks: MakeRecordingCallbacks,
) -> str | None:
    """Run the missing episodes and complete the dataset; return a note on its files, if any."""
    dataset, room = recording.dataset, recording.room()
    plan = [spec for spec in attempts.plan() if room[spec.task.key] > 0]
    line, missing = pending_episodes(dataset, plan, rows, room)
    with recording.session() as session:

        def another(task: Task) -> EpisodeSpec | None:
            spec = attempts.another(task)
            if spec is not None:
                session.add(spec)
            return spec

        callback = DatasetCallback(dataset, line, another)
        callback.append_ready()
        if missing:
            callbacks = make_callbacks(recording.counts(), lambda: dataset.writer.n_episodes)
            try:
                session.run(
                    RemainingEpisodes(missing, -1), [callback, *callbacks], EarlyStopping((), ())
                )
            except KeyboardInterrupt:
                callback.append_ready()  # the others wait for earlier episodes of the plan
                raise
        return callback.finish()


def _task_records(
    context: RolloutContext[RecordConfig], in_dataset: Collection[EpisodeKey]
) -> list[TaskRecord]:
    """Return the counts of every task over all sessions."""
    known = set(in_dataset)
    of_task: dict[_TaskKey, list[EpisodeRecord]] = {}
    for row in read_journal(context.folder.path).rows:
        of_task.setdefault(row.key[:2], []).append(row)
    records = []
    for task in context.benchmark.tasks():
        rows = of_task.get(task.key, [])
        kept = [row for row in rows if row.key in known]
        records.append(
            TaskRecord(
                name=task.name,
                kept=len(kept),
                attempts=len(rows),
                failed=sum(row.outcome.failed for row in rows),
                errors=sum(row.outcome is Outcome.ERROR for row in rows),
                frames=sum(row.steps or 0 for row in kept),
            )
        )
    return records
