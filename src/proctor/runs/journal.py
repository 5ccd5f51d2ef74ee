"""The journal: one line per finished episode, on disk before anything else happens with it."""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from proctor.runs.jsonl import UNREADABLE, read_jsonl
from proctor.runs.records import RECORD_FORMAT, Number, Seconds, Whole, refuse_newer
from proctor.types import EpisodeKey, EpisodeResult, EpisodeSpec, Outcome, WorldKey, default_world

JOURNAL_FILE = "episodes.jsonl"
VIDEO_FOLDER = "videos"
TAKES_FOLDER = "takes"
_LONGEST_NAME = 200
"""Of a suite, where it is part of a file name."""


@dataclass(slots=True)
class EpisodeRecord:
    """One line of the journal. What was not measured is None, never zero."""

    suite: str
    task: str
    task_id: Whole
    episode_index: Whole
    seed: Whole
    outcome: Outcome
    success_once: bool | None
    success_at_end: bool | None
    steps: Whole | None
    sum_reward: Number | None
    max_reward: Number | None
    start_time: Seconds
    end_time: Seconds
    worker: Whole
    attempts: Whole
    renders: Whole | None
    clipped_steps: Whole | None
    open_s: Seconds | None
    sim_s: Seconds | None
    render_s: Seconds | None
    wait_s: Seconds | None
    digest: str | None
    error: str | None
    init_state: Whole | None = None
    world: str = ""
    """As in the spec; journals from before it was written down have what it would have been."""
    steps_to_success: Whole | None = None
    """After how many the task was first solved; older journals do not say it."""
    format: Whole = RECORD_FORMAT

    def __post_init__(self) -> None:
        if not self.world:
            self.world = default_world(self.seed, self.init_state)

    def disagreement(self, spec: EpisodeSpec) -> str | None:
        """Say in what this is no record of ``spec``, which has its key; None where it is one."""
        usual = default_world(spec.seed, spec.init_state)  # what older journals are taken to say
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
        """What identifies the episode inside a run."""
        return (self.suite, self.task_id, self.episode_index)

    @property
    def world_key(self) -> WorldKey:
        """What identifies the starting world inside a run."""
        return (self.suite, self.task_id, self.world)

    @property
    def video(self) -> str:
        """Where the episode's video lies in the run folder, if it has one."""
        return video_path(self.key)


def video_path(key: EpisodeKey) -> str:
    """Return the one place for an episode's video, relative to the run folder.

    That the file is there is all that says so: a failure may be filmed after its line was written.
    """
    suite, task_id, index = key
    return f"{VIDEO_FOLDER}/{_file_name(suite)}_{task_id}/episode_{index}.mp4"


def staged_episode_path(key: EpisodeKey) -> str:
    """Return the one place for an episode's take, relative to the run folder."""
    suite, task_id, index = key
    return f"{TAKES_FOLDER}/{_file_name(suite)}_{task_id}/episode_{index}"


def _file_name(suite: str) -> str:
    """Return the suite as a part of a file name: itself, or what is left of it and its hash.

    No two suites share one; a dot is in none that stands for itself.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", suite)[:_LONGEST_NAME]
    if plain == suite:
        return suite
    return f"{plain}.{hashlib.sha256(suite.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def videos_in(folder: Path) -> frozenset[str]:
    """Return the videos of a run as ``video_path`` names them: one look, not one per episode."""
    found = (path for path in folder.glob(f"{VIDEO_FOLDER}/*/*.mp4") if path.is_file())
    return frozenset(path.relative_to(folder).as_posix() for path in found)


def row_of(result: EpisodeResult) -> EpisodeRecord:
    """Turn a result into its journal line."""
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
    )


_decode_row = msgspec.json.Decoder(EpisodeRecord).decode


class _Formatted(msgspec.Struct):
    """What a line says of any format."""

    format: int = RECORD_FORMAT


@dataclass(frozen=True)
class JournalContent:
    """What a journal holds: its episodes, each once, and the numbers of lines nobody can read."""

    rows: list[EpisodeRecord]
    damaged: list[int]


def read_journal(folder: Path) -> JournalContent:
    """Read the finished episodes of a run; a last line cut short (power loss) is passed over.

    Of an episode that errored and was run again the later line counts, with the attempts of all.
    Whoever succeeded or failed has done so: no later line changes that.

    Raises:
        RunFolderError: the journal is there but is no plain file, cannot be read, or has a line of
            a format that only a newer Proctor knows.
    """
    path = folder / JOURNAL_FILE
    rows: dict[EpisodeKey, EpisodeRecord] = {}
    damaged = []
    for line in read_jsonl(path, _decode_row):
        row = line.value
        written = _format_of(line.text) if row is None else row.format
        if written > RECORD_FORMAT:
            refuse_newer(written, RECORD_FORMAT, f"line {line.number} of {path}")
        if row is None:
            damaged.append(line.number)
            continue
        earlier = rows.get(row.key)
        if earlier is None:
            rows[row.key] = row
        elif earlier.outcome is Outcome.ERROR:
            rows[row.key] = replace(row, attempts=earlier.attempts + row.attempts)
    return JournalContent(list(rows.values()), damaged)


def _format_of(line: bytes) -> int:
    """Return the format of a line that is not a record of this version."""
    with contextlib.suppress(*UNREADABLE):
        return msgspec.json.decode(line, type=_Formatted).format
    return RECORD_FORMAT
