"""The files of a training folder that other packages read: ``train.json`` and ``log.jsonl``."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from proctor.errors import UsageError
from proctor.number_text import interval_text, percent_text
from proctor.permissions import permission_flags
from proctor.runs.jsonl import read_jsonl
from proctor.runs.paths import RecordedPath
from proctor.runs.records import FiniteFloat, Seconds
from proctor.system.files import read_regular_file
from proctor.types import MAX_EPISODES

RECORD_FILE, LOG_FILE = "train.json", "log.jsonl"
DIVERGENCE_FILE = "divergence.jsonl"
"""Loss and gradient norm of each of the last steps of a diverged training."""
CHECKPOINTS, EVALUATIONS, REPLAY = "checkpoints", "eval", "replay"
TRAINING_FORMAT = 1
_Step = Annotated[int, msgspec.Meta(ge=0, le=10**12)]


@dataclass(frozen=True)
class _Sections:
    """The settings of which this package reads single ones."""

    policy: dict[str, Any] | None = None
    dataset: dict[str, Any] | None = None
    ema: dict[str, Any] | None = None


@dataclass(frozen=True)
class TrainingDataset:
    """A dataset of a training, used from ``first_step`` until the next one's."""

    first_step: _Step
    """Completed steps at its first use, where the order of its samples begins."""
    identity: dict[str, Any]
    """The identity of its contents (``datasets.reading.identity``)."""
    repo_id: str = ""
    revision: str | None = None
    root: RecordedPath | None = None
    """Its folder; None: on the Hub."""
    episodes: str | None = None
    """The episodes that are trained on, as ranges (0-44,46); None in older records."""

    @property
    def size(self) -> str:
        """Its number of episodes and frames, as text."""
        counts = (f"{self.identity.get(name, 0):,} {name}" for name in ("episodes", "frames"))
        return ", ".join(counts)

    @property
    def name(self) -> str:
        """Its Hub id, or its folder as typed."""
        return self.repo_id if self.root is None else self.root.typed

    @property
    def trained_on(self) -> set[int]:
        """Numbers of the episodes that are trained on; empty if unknown."""
        return set(episodes_in(self.episodes or ""))

    def __str__(self) -> str:
        return f"{self.name} ({self.size})"


_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def episodes_in(text: str) -> Iterator[int]:
    """Yield the numbers that ``number_ranges`` wrote."""
    for part in text.split(",") if text else ():
        found = _RANGE.fullmatch(part)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not 0 <= high - low < MAX_EPISODES:
            raise UsageError(
                f"{RECORD_FILE}: episodes {part[:40]!r} are damaged", code="run.unreadable"
            )
        yield from range(low, high + 1)


@dataclass(frozen=True)
class SettingsChange:
    """Settings that a resumed training changed."""

    step: _Step
    """The step of the checkpoint that was resumed."""
    settings: str
    """Each setting with its old and new value, as text."""


@dataclass(frozen=True)
class TrainingRecord:
    """The schema of ``train.json``: the settings and machine of a training."""

    given: dict[str, Any]
    resolved: dict[str, Any]
    sessions: list[Seconds]
    """Start time of each session, in seconds since 1970."""
    versions: dict[str, str]
    machine: dict[str, Any]
    format: int = TRAINING_FORMAT
    frames: _Step | None = None
    """Frames that the newest session trains on; None in records of older versions."""
    datasets: list[TrainingDataset] = field(default_factory=list)
    """The datasets in the order of their steps; empty in older records."""
    dataset: dict[str, Any] | None = None
    """The identity of the one dataset, in older records; else None."""
    resumed_step: _Step | None = None
    """Step of the checkpoint that the newest session resumed from; None: it began at step 0, or the
    record is older."""
    wordings: str | None = None
    """Digest of the training wordings; None without --dataset.paraphrase_tasks, or in older
    records."""
    changes: list[SettingsChange] = field(default_factory=list)
    """What resumed sessions changed, in the order of their steps; empty in older records."""
    paths: dict[str, RecordedPath] = field(default_factory=dict)
    """The paths in the settings by dotted name; empty in older records."""

    @property
    def known_datasets(self) -> list[TrainingDataset]:
        """``datasets``, also of an older record; empty if it has no identity."""
        if self.datasets or self.dataset is None:
            return self.datasets
        given = self.resolved.get("dataset") or {}
        place = self.paths.get("dataset.root")
        name, revision = str(given.get("repo_id") or ""), given.get("revision")
        return [TrainingDataset(0, self.dataset, name, revision, place)]

    @property
    def plays_averages(self) -> bool:
        """Whether its checkpoints are evaluated with EMA weights."""
        ema = self.resolved.get("ema") or {}
        return bool(ema.get("enable") and ema.get("use_for_eval", True))


@dataclass(frozen=True)
class TrainingLogRow:
    """Means over the steps since the previous row; ``step`` and ``lr`` are the latest values."""

    step: _Step
    loss: FiniteFloat
    lr: FiniteFloat
    samples_per_s: FiniteFloat
    step_s: Seconds
    waiting: FiniteFloat
    """Share of the time spent waiting for the data loader."""
    memory_gb: FiniteFloat
    grad_norm: FiniteFloat | None = None
    """None if no update was made."""
    parts: dict[str, FiniteFloat] = field(default_factory=dict)
    steps: _Step = 0
    """Number of steps in the means; 0 in logs of older versions."""
    skipped: _Step = 0
    """Updates that were skipped, because of their gradient."""


@dataclass(frozen=True)
class ValidationLogRow:
    """The validation loss: on episodes that are not trained on."""

    step: _Step
    loss: FiniteFloat


@dataclass(frozen=True)
class EvaluationLogRow:
    """The evaluation of a checkpoint; ``problem`` says why there is no rate."""

    step: _Step
    pc_success: FiniteFloat | None = None
    interval: tuple[FiniteFloat, FiniteFloat] | None = None
    episodes: _Step = 0
    problem: str | None = None
    avg_sum_reward: FiniteFloat | None = None
    eval_s: Seconds | None = None
    errors: _Step = 0
    """Episodes that failed for a reason that is not the policy's; outside the rate."""

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The rate in percent if all errors had failed, or all succeeded; None without a rate."""
        if self.pc_success is None:
            return None
        share = self.episodes / max(1, self.episodes + self.errors)
        return self.pc_success * share, self.pc_success * share + 100 * (1 - share)

    @property
    def score(self) -> float | None:
        """The rate by which checkpoints are ranked: errors count as failures.

        So an evaluation that lost most of its episodes is never the best by chance.
        """
        return None if self.bounds is None else self.bounds[0]

    @property
    def errors_text(self) -> str:
        """The number of errors in words, with the bounds of the rate; empty without errors."""
        if not self.errors:
            return ""
        text = f"{self.errors:,} error{'s' * (self.errors != 1)}"
        if self.bounds is None:
            return text
        low, high = (percent_text(end, 1) for end in self.bounds)
        return f"{text} ({low} to {high} if {'it' if self.errors == 1 else 'they'} had counted)"

    @property
    def rate_text(self) -> str:
        """The rate, its interval and the errors as text."""
        ends = "" if self.interval is None else f" {interval_text(self.interval, 1)}"
        broken = f", {self.errors_text}" if self.errors else ""
        return f"{percent_text(self.pc_success, 1)}{ends} n={self.episodes}{broken}"

    def errors_note(self, run: Path) -> str | None:
        """Say that errors count as failures when checkpoints are ranked; None without errors."""
        if not self.errors or self.score is None:
            return None
        return (
            f"note: {self.errors} of {self.episodes + self.errors} episodes of step {self.step:,} "
            f"ended with an error; `best` counts them as failures ({percent_text(self.score, 1)}); "
            f"to run them again: proctor eval --resume --output_dir={shlex.quote(str(run))}, "
            "then resume the training"
        )

    def __str__(self) -> str:
        if self.problem is not None:
            return f"step {self.step:,}: its evaluation ended without a rate: {self.problem}"
        return f"step {self.step:,}: success {self.rate_text}"


@dataclass(frozen=True)
class OnlineLogRow:
    """Metrics of online learning since the previous row; ``step`` counts environment steps."""

    step: _Step
    updates: _Step
    losses: dict[str, FiniteFloat]
    updates_per_s: FiniteFloat
    steps_per_s: FiniteFloat
    online_buffer: _Step
    offline_buffer: _Step | None = None
    episodes: _Step = 0
    reward: FiniteFloat | None = None
    success: FiniteFloat | None = None
    intervention_rate: FiniteFloat | None = None


@dataclass(frozen=True)
class _Kind:
    kind: str


LogRow: TypeAlias = TrainingLogRow | ValidationLogRow | EvaluationLogRow | OnlineLogRow
_KINDS: dict[str, type[LogRow]] = {
    "train": TrainingLogRow,
    "held_out": ValidationLogRow,
    "evaluation": EvaluationLogRow,
    "online": OnlineLogRow,
}


def read_training(folder: Path) -> TrainingRecord | None:
    """Return the record of the training in ``folder``; None if there is no ``train.json``."""
    file = folder / RECORD_FILE
    try:
        # Not msgspec's parser: a path that is not UTF-8 is stored as a lone surrogate.
        found = msgspec.convert(json.loads(read_regular_file(file)), type=TrainingRecord)
        msgspec.convert(found.resolved, _Sections)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", code="training.unreadable"
        ) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{file} is not what a training writes: {error}", code="training.damaged"
        ) from None
    if found.format > TRAINING_FORMAT:
        raise UsageError(
            f"{file} was written by a newer Proctor (format {found.format})",
            code="training.too-new",
        )
    return found


def resume_flags(folder: Path) -> str:
    """Return the flags, each after a space, that a resumed training needs besides its folder."""
    record = read_training(folder)
    return "" if record is None else permission_flags(record.given, but=("output_dir",))


def read_training_log(folder: Path) -> list[LogRow]:
    """Return the rows of a training's log; damaged lines and unknown kinds are left out."""
    lines = read_jsonl(folder / LOG_FILE, _decode_row)
    return [line.value for line in lines if line.value is not None]


def is_news(found: EvaluationLogRow, rows: Iterable[LogRow]) -> bool:
    """Tell whether results are not logged yet, or with errors that were run again since."""
    logged = [row for row in rows if isinstance(row, EvaluationLogRow) and row.step == found.step]
    return all(row.problem is not None or row.errors > found.errors for row in logged)


def _decode_row(text: bytes) -> LogRow | None:
    kind = _KINDS.get(msgspec.json.decode(text, type=_Kind).kind)
    return None if kind is None else msgspec.json.decode(text, type=kind)
