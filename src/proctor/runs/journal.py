"""The journal of a run: ``episodes.jsonl``, one line per finished episode.

An episode's line is written before any other output of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from proctor.runs.jsonl import UNREADABLE, read_jsonl
from proctor.runs.records import (
    RECORD_FORMAT,
    FiniteFloat,
    NonNegativeInt,
    PlannedTask,
    Seconds,
    refuse_newer_format,
)
from proctor.types import (
    EpisodeKey,
    EpisodeResult,
    EpisodeSpec,
    EpisodeStart,
    Outcome,
    Start,
    default_world,
)

JOURNAL_FILE = "episodes.jsonl"
VIDEO_FOLDER = "videos"
STAGING_FOLDER = "takes"
_LONGEST_NAME = 200
"""Characters of a suite's name in a file name."""


@dataclass(slots=True)
class EpisodeRecord:
    """One line of the journal. Values that were not measured are None, never zero."""

    suite: str
    task: str
    task_id: NonNegativeInt
    episode_index: NonNegativeInt
    seed: NonNegativeInt
    outcome: Outcome
    success_once: bool | None
    success_at_end: bool | None
    steps: NonNegativeInt | None
    sum_reward: FiniteFloat | None
    max_reward: FiniteFloat | None
    start_time: Seconds
    end_time: Seconds
    worker: NonNegativeInt
    attempts: NonNegativeInt
    renders: NonNegativeInt | None
    clipped_steps: NonNegativeInt | None
    open_s: Seconds | None
    sim_s: Seconds | None
    render_s: Seconds | None
    wait_s: Seconds | None
    digest: str | None
    error: str | None
    init_state: NonNegativeInt | None = None
    world: str = ""
    """The world of the spec. For a journal of an older version: the default world of the seed."""
    steps_to_success: NonNegativeInt | None = None
    """Steps until the task was first solved; None in journals of older versions."""
    scores: dict[str, FiniteFloat] | None = None
    """Maximum of each score of the benchmark; None if it has none, and in older journals."""
    judge_probability: FiniteFloat | None = None
    """Probability of success by the judge of --eval.judge; None: not judged."""
    judge_success: bool | None = None
    """The judge's verdict; the success rate is the simulator's."""
    start: Start | None = None
    """The measured start; None in journals of older versions, whose starts are assumed."""
    clean_task: tuple[str, NonNegativeInt] | None = None
    """The clean task (suite, task id) of a perturbed episode; None: a clean episode, and every
    episode in journals of older versions."""
    format: NonNegativeInt = RECORD_FORMAT

    def __post_init__(self) -> None:
        if not self.world:
            self.world = default_world(self.seed, self.init_state)

    def disagreement(self, spec: EpisodeSpec) -> str | None:
        """Say which field differs from ``spec``, which has the same key; None if all agree."""
        usual = default_world(spec.seed, spec.init_state)  # of journals without this field
        parts = (
            ("task", self.task, (spec.task.name,)),
            ("seed", self.seed, (spec.seed,)),
            ("init state", self.init_state, (spec.init_state,)),
            ("world", self.world, (spec.world, usual)),
        )
        for name, recorded, planned in parts:
            if recorded not in planned:
                return f"{name} {recorded!r} in the journal, {planned[0]!r} in the plan"
        return None

    @property
    def key(self) -> EpisodeKey:
        """The key of the episode inside its run."""
        return (self.suite, self.task_id, self.episode_index)

    @property
    def started(self) -> EpisodeStart:
        """Where the episode started."""
        clean, task = self.clean_task, (self.suite, self.task_id)
        return EpisodeStart(
            clean or task, clean is not None, self.world, self.seed, self.init_state, self.start
        )

    @property
    def video(self) -> str:
        """The path of the episode's video, relative to the run folder; the file may not exist."""
        return video_path(self.key)


def video_path(key: EpisodeKey) -> str:
    """Return the path of an episode's video, relative to the run folder.

    Whether there is a video is known only from the file: a failed episode is replayed for its
    video after its line was written.
    """
    suite, task_id, index = key
    return f"{VIDEO_FOLDER}/{_file_name(suite)}_{task_id}/episode_{index}.mp4"


def staged_episode_path(key: EpisodeKey) -> str:
    """Return the folder of a staged episode, relative to the run folder."""
    suite, task_id, index = key
    return f"{STAGING_FOLDER}/{_file_name(suite)}_{task_id}/episode_{index}"


def _file_name(suite: str) -> str:
    """Return a suite's name as part of a file name; a name with odd characters gets a hash.

    The result is unique: only names with a hash contain a dot.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", suite)[:_LONGEST_NAME]
    if plain == suite:
        return suite
    return f"{plain}.{hashlib.sha256(suite.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def videos_in(folder: Path) -> frozenset[str]:
    """Return the existing videos of a run, as ``video_path`` names them."""
    found = (path for path in folder.glob(f"{VIDEO_FOLDER}/*/*.mp4") if path.is_file())
    return frozenset(path.relative_to(folder).as_posix() for path in found)


def make_record(result: EpisodeResult) -> EpisodeRecord:
    """Make the journal record of a result."""
    spec, times = result.spec, result.timings
    ran = result.outcome.counts
    measured = ran and result.measured
    return EpisodeRecord(
        suite=spec.task.suite,
        task=spec.task.name,
        task_id=spec.task.task_id,
        episode_index=spec.index,
        seed=spec.seed,
        init_state=spec.init_state,
        world=spec.world,
        outcome=result.outcome,
        success_once=result.success_once if ran else None,
        success_at_end=result.success_at_end if ran else None,
        steps=result.steps if ran else None,
        sum_reward=result.sum_reward if measured else None,
        max_reward=result.max_reward if measured else None,
        start_time=round(result.started_at, 4),
        end_time=round(result.ended_at, 4),
        worker=result.worker,
        attempts=result.attempts,
        renders=result.renders if measured else None,
        clipped_steps=result.clipped_steps if measured else None,
        open_s=round(times.open_s, 6) if measured else None,
        sim_s=round(times.sim_s, 6) if measured else None,
        render_s=round(times.render_s, 6) if measured else None,
        wait_s=round(times.wait_s, 6) if measured else None,
        digest=result.digest,
        error=result.error,
        steps_to_success=result.steps_to_success,
        scores=result.scores if measured else None,
        judge_probability=result.judge_probability,
        judge_success=result.judge_success,
        start=result.start,
        clean_task=None if spec.task.perturbation is None else spec.task.perturbation.clean_key,
    )


_decode_row = msgspec.json.Decoder(EpisodeRecord).decode


class _Formatted(msgspec.Struct):
    """The field that a line of any format has."""

    format: int = RECORD_FORMAT


@dataclass(frozen=True)
class JournalContent:
    """The episodes of a journal, each once, and the numbers of its damaged lines."""

    rows: list[EpisodeRecord]
    damaged: list[int]


def read_journal(folder: Path) -> JournalContent:
    """Read the finished episodes of a run.

    If an episode errored and was run again, the later line counts, with the attempts of both. A
    success or failure is final: later lines of the same episode are ignored.
    """
    path = folder / JOURNAL_FILE
    rows: dict[EpisodeKey, EpisodeRecord] = {}
    damaged = []
    for line in read_jsonl(path, _decode_row):
        row = line.value
        written = _format_of(line.text) if row is None else row.format
        if written > RECORD_FORMAT:
            refuse_newer_format(written, RECORD_FORMAT, f"line {line.number} of {path}")
        if row is None:
            damaged.append(line.number)
            continue
        earlier = rows.get(row.key)
        if earlier is None:
            rows[row.key] = row
        elif earlier.outcome is Outcome.ERROR:
            rows[row.key] = replace(row, attempts=earlier.attempts + row.attempts)
    return JournalContent(list(rows.values()), damaged)


def measures_starts(folder: Path) -> bool:
    """Tell whether a run's next episodes are journalled with their starts.

    A run keeps its kind: if an older version began it without measuring starts, they stay assumed.
    """
    for line in read_jsonl(folder / JOURNAL_FILE, _decode_row):
        if line.value is not None and line.value.outcome.counts:
            return line.value.start is not None or line.value.steps is None
    return True


def with_clean_tasks(
    rows: Iterable[EpisodeRecord], tasks: Iterable[PlannedTask]
) -> list[EpisodeRecord]:
    """Set the clean task of perturbed episodes, which journals of older versions do not have."""
    clean = {
        (task.suite, task.task_id): task.perturbation.clean_key
        for task in tasks
        if task.perturbation is not None
    }
    return [
        row
        if row.clean_task is not None or row.key[:2] not in clean
        else replace(row, clean_task=clean[row.key[:2]])
        for row in rows
    ]


def _format_of(line: bytes) -> int:
    """Return the format of a line that is not a record of this version."""
    with contextlib.suppress(*UNREADABLE):
        return msgspec.json.decode(line, type=_Formatted).format
    return RECORD_FORMAT
