"""The files of a training that others read: how it was asked for, and how it went."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from proctor.errors import UsageError
from proctor.runs.jsonl import read_jsonl
from proctor.runs.records import Number, Seconds
from proctor.system.files import read_regular_file

RECORD_FILE, LOG_FILE = "train.json", "log.jsonl"
CHECKPOINTS, EVALUATIONS = "checkpoints", "eval"
TRAINING_FORMAT = 1
_Step = Annotated[int, msgspec.Meta(ge=0, le=10**12)]


@dataclass(frozen=True)
class TrainingRecord:
    """What train.json must look like, whoever wrote it."""

    given: dict[str, Any]
    resolved: dict[str, Any]
    sessions: list[Seconds]
    """When each process that worked on it began, in seconds since 1970."""
    versions: dict[str, str]
    machine: dict[str, Any]
    format: int = TRAINING_FORMAT
    frames: _Step | None = None
    """How many the newest session learns from; None in a record from before this was said."""
    dataset: dict[str, Any] | None = None
    """The identity of the dataset's contents (``training.same_dataset``); None in older records."""

    @property
    def plays_averages(self) -> bool:
        """Whether the rates of its checkpoints are those of averaged weights."""
        ema = self.resolved.get("ema") or {}
        return bool(ema.get("enable") and ema.get("use_for_eval", True))


@dataclass(frozen=True)
class TrainingLogRow:
    """The steps since the line before: means, but for ``step`` and ``lr``."""

    step: _Step
    loss: Number
    lr: Number
    samples_per_s: Number
    step_s: Seconds
    waiting: Number
    """Share of the time in which there was no batch to compute with."""
    memory_gb: Number
    grad_norm: Number | None = None
    """None where no update was made."""
    parts: dict[str, Number] = field(default_factory=dict)
    steps: _Step = 0
    """How many they are; 0 in a log from before this was written down."""


@dataclass(frozen=True)
class ValidationLogRow:
    """The loss on episodes that are not trained on."""

    step: _Step
    loss: Number


@dataclass(frozen=True)
class EvaluationLogRow:
    """A checkpoint's evaluation; ``problem`` says why there is no rate."""

    step: _Step
    pc_success: Number | None = None
    interval: tuple[Number, Number] | None = None
    episodes: _Step = 0
    problem: str | None = None
    avg_sum_reward: Number | None = None
    eval_s: Seconds | None = None

    def __str__(self) -> str:
        if self.problem is not None:
            return f"step {self.step:,}: its evaluation ended without a rate: {self.problem}"
        ends = "" if self.interval is None else " [{:.1f}, {:.1f}]".format(*self.interval)
        rate = "n/a" if self.pc_success is None else f"{self.pc_success:.1f}%"
        return f"step {self.step:,}: success {rate}{ends} n={self.episodes}"


@dataclass(frozen=True)
class _Kind:
    kind: str


LogRow: TypeAlias = TrainingLogRow | ValidationLogRow | EvaluationLogRow
_KINDS: dict[str, type[LogRow]] = {
    "train": TrainingLogRow,
    "held_out": ValidationLogRow,
    "evaluation": EvaluationLogRow,
}


def read_training(folder: Path) -> TrainingRecord | None:
    """Return how the training in ``folder`` was asked for; None where it is none of ours.

    Raises:
        UsageError: the record is damaged, or of a newer Proctor.
    """
    file = folder / RECORD_FILE
    try:
        found = msgspec.json.decode(read_regular_file(file), type=TrainingRecord)
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


def read_training_log(folder: Path) -> list[LogRow]:
    """Return the rows of a training's log; damaged lines and unknown kinds are left out.

    Raises:
        RunFolderError: the log exists and cannot be read.
    """
    lines = read_jsonl(folder / LOG_FILE, _decode_row)
    return [line.value for line in lines if line.value is not None]


def _decode_row(text: bytes) -> LogRow | None:
    kind = _KINDS.get(msgspec.json.decode(text, type=_Kind).kind)
    return None if kind is None else msgspec.json.decode(text, type=kind)
