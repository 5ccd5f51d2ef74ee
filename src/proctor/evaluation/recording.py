"""One recording from config to dataset: plays until enough demonstrations are kept of every task.

Every task is played n times, and once more for each episode that is not kept: which episodes are
played depends on how they end and on nothing else, so neither does what the dataset holds.
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
from proctor.callbacks.base import Callback
from proctor.callbacks.dataset import DatasetCallback, OpenDataset
from proctor.callbacks.early_stopping import EarlyStopping
from proctor.callbacks.staged_episodes import Keep
from proctor.config.recording import RecordConfig
from proctor.config.sections import VideoSettings
from proctor.errors import UsageError
from proctor.evaluation.cluster import make_executor
from proctor.evaluation.demonstrations import Demonstrations, demonstrations, pending_episodes
from proctor.evaluation.plan import RemainingEpisodes, check_planned
from proctor.evaluation.preparing import checked, record_of
from proctor.evaluation.rollout_context import RolloutContext, require_judged
from proctor.evaluation.session import Session
from proctor.evaluation.video_replay import VideoReplay
from proctor.runs.disk_errors import explaining_disk_errors
from proctor.runs.folder import RUN_FILE, RunFolder
from proctor.runs.journal import JOURNAL_FILE, EpisodeRecord, read_journal
from proctor.runs.jsonl import truncate_partial_line
from proctor.system.files import recover_swap
from proctor.types import EpisodeKey, EpisodeSpec, Outcome, Task

_TaskKey = tuple[str, int]
MakeRecorders = Callable[[int], list[Callback]]
"""Makes what watches a session, given how many demonstrations there are already."""


@dataclass(frozen=True)
class TaskRecord:
    """What came of one task."""

    name: str
    kept: int
    attempts: int
    failed: int
    errors: int
    frames: int


@dataclass(frozen=True)
class RecordingResult:
    """A dataset after a session on it."""

    root: Path
    wanted: int
    """Of every task."""
    tasks: list[TaskRecord]
    seconds: float
    """Of this session."""
    log: Path
    """What simulators said."""
    note: str | None = None
    """Why the dataset's files are not put together, where they are not."""

    @property
    def complete(self) -> bool:
        """Whether there are as many demonstrations of every task as asked for."""
        return all(task.kept >= self.wanted for task in self.tasks)


def prepare(config: RecordConfig) -> tuple[RolloutContext[RecordConfig], Demonstrations]:
    """Check that everything ``config`` names exists, fits together and can be recorded.

    Runs no simulator and writes nothing.

    Raises:
        UsageError: with one line that says what to change.
    """
    folder = RunFolder(config.run_folder)
    _check_place(config, folder)
    context = checked(config, folder, range(config.record.n_episodes))
    if config.record.kept is Keep.SUCCESS:
        require_judged(context.benchmark, "successes are kept (or --record.keep=all)")
    shown = demonstrations(context.benchmark, config.dataset, config.record, folder.path)
    shown.environment(context.policy.spec.inputs)
    return context, shown


def _check_place(config: RecordConfig, folder: RunFolder) -> None:
    """Refuse a dataset that exists, or one to go on with that does not."""
    root = config.dataset.folder
    if config.resume:
        recover_swap(root)
    there = root.exists()
    if there and not config.resume:
        raise UsageError(
            f"{root} exists; add --resume to record what is missing in it, or choose another "
            "--dataset.root"
        )
    if config.resume and folder.read() is None:
        raise UsageError(f"--resume: {folder.path} holds no recording to go on with")
    if config.resume and not there and read_journal(folder.path).rows:
        raise UsageError(
            f"--resume: the dataset {root} is gone; remove {folder.path} to record it anew"
        )


def run_recording(
    context: RolloutContext[RecordConfig],
    shown: Demonstrations,
    given: dict[str, Any],
    make_recorders: MakeRecorders = lambda kept: [],
) -> RecordingResult:
    """Play what is missing, and append what is kept to the dataset.

    Raises:
        UsageError: the folder holds another recording.
        RunFolderError: the folder is in use, or it or the dataset cannot be written.
        KeyboardInterrupt: passed on, after everything finished is on disk.
    """
    config, folder, began = context.config, context.folder, time.monotonic()
    protocol = context.protocol()
    with folder.locked(), explaining_disk_errors(partial(_kept_of, context)):
        record = folder.session_record(record_of(context, protocol, given), resume=config.resume)
        rows = {row.key: row for row in read_journal(folder.path).rows}
        attempts = Attempts(context.benchmark, config, rows.values())
        check_planned(attempts.plan(), list(rows.values()), folder.path)
        folder.write(record)  # nothing is refused from here on
        truncate_partial_line(folder.path / JOURNAL_FILE)
        with shown.open(folder.path, protocol) as dataset:
            note = _play(_Stage(context, shown, dataset), attempts, rows, make_recorders)
            recorded = _task_records(context, dataset.ledger.keys)
    return RecordingResult(
        root=shown.root,
        wanted=config.record.n_episodes,
        tasks=recorded,
        seconds=time.monotonic() - began,
        log=folder.path / "workers.log",
        note=note,
    )


def _kept_of(context: RolloutContext[RecordConfig], mend: str) -> str:
    """Say what is kept of a recording that the disk ended, and how to go on."""
    if not (context.folder.path / RUN_FILE).exists():
        return f"nothing was recorded: {mend}, then run again"
    kept = f"what is in {context.config.dataset.folder} is kept"
    return f"{kept}, and what was played: {mend}, then run again with --resume"


class Attempts:
    """Which episodes are played: n of every task, and one more for each that is not kept."""

    def __init__(
        self, benchmark: Benchmark, config: RecordConfig, rows: Collection[EpisodeRecord]
    ) -> None:
        """Go on after ``rows``; errored episodes of earlier sessions are tried again."""
        self._benchmark, self._seed = benchmark, config.seed
        self._most, keep = config.record.attempts, config.record.kept
        lost: Counter[_TaskKey] = Counter()
        played: dict[_TaskKey, int] = {}
        for row in rows:
            task = row.key[:2]
            lost[task] += row.outcome.counts and not keep.keeps(row.outcome)
            played[task] = max(played.get(task, 0), row.episode_index + 1)
        wanted = config.record.n_episodes
        self._next = {
            task.key: max(min(wanted + lost[task.key], self._most), played.get(task.key, 0))
            for task in benchmark.tasks()
        }

    def plan(self) -> list[EpisodeSpec]:
        """List what is planned so far, task by task."""
        return [
            self._benchmark.spec(task, index, self._seed)
            for task in self._benchmark.tasks()
            for index in range(self._next[task.key])
        ]

    def another(self, task: Task) -> EpisodeSpec | None:
        """Plan one more episode of ``task``; None where there have been enough."""
        index = self._next[task.key]
        if index >= self._most:
            return None
        self._next[task.key] += 1
        return self._benchmark.spec(task, index, self._seed)


@dataclass(frozen=True)
class _Stage:
    """Who plays, what is recorded of it, and where that goes."""

    context: RolloutContext[RecordConfig]
    shown: Demonstrations
    dataset: OpenDataset

    def session(self) -> Session:
        """Return what plays episodes and records them."""
        context, config = self.context, self.context.config
        environment = self.shown.environment(context.policy.spec.inputs)
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
        """Return how many demonstrations of each task the dataset still lacks."""
        kept = Counter(key[:2] for key in self.dataset.ledger.keys)
        wanted = self.context.config.record.n_episodes
        return {task.key: wanted - kept[task.key] for task in self.context.benchmark.tasks()}


def _play(
    executor: _Stage,
    attempts: Attempts,
    rows: Mapping[EpisodeKey, EpisodeRecord],
    make_recorders: MakeRecorders,
) -> str | None:
    """Play what is missing and complete the dataset; return what is to be said of its files."""
    dataset, room = executor.dataset, executor.room()
    plan = [spec for spec in attempts.plan() if room[spec.task.key] > 0]
    line, missing = pending_episodes(dataset, plan, rows, room)
    with executor.session() as session:

        def another(task: Task) -> EpisodeSpec | None:
            spec = attempts.another(task)
            if spec is not None:
                session.add(spec)
            return spec

        callback = DatasetCallback(dataset, line, another)
        callback.append_ready()
        if missing:
            watching = make_recorders(len(dataset.ledger.keys))
            session.run(
                RemainingEpisodes(missing, -1), [callback, *watching], EarlyStopping((), ())
            )
        return callback.finish()


def _task_records(
    context: RolloutContext[RecordConfig], in_dataset: Collection[EpisodeKey]
) -> list[TaskRecord]:
    """Say of every task what came of it in all sessions."""
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
