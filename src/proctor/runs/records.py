"""Types that the files of a run share: format number, bounded numbers, tasks and progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from proctor.errors import RunFolderError
from proctor.types import Perturbation

RECORD_FORMAT = 1
"""Format of ``run.json`` and of a journal's line. It goes up when an older version would misread
them. A record without a number has format 1."""

FiniteFloat = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
"""A finite number in a file, bounded so that a million of them have a finite sum."""


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""A duration in a file, or a time in seconds since 1970 before the year 5138."""


NonNegativeInt = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A count, an index or a seed in a file; exact in JavaScript too."""


_Size = Annotated[int, msgspec.Meta(ge=-1000, le=1000)]


def refuse_newer_format(found: object, known: int, what: str) -> None:
    """Refuse a record of a newer format; older formats are read."""
    if isinstance(found, int) and found > known:
        raise RunFolderError(
            f"{what} is of format {found}, this Proctor reads up to {known}; "
            "run: pip install --upgrade proctor",
            code="run.too-new",
        )


@dataclass(frozen=True)
class PlannedTask:
    """A task of a run, and its number of planned episodes."""

    suite: str
    task_id: NonNegativeInt
    name: str
    instruction: str
    max_steps: NonNegativeInt
    episodes: NonNegativeInt
    perturbation: Perturbation | None = None
    """None: a clean task, and every task in folders of older versions."""


@dataclass(frozen=True)
class SessionPlan:
    """What a session of a run was going to do, written when the session began."""

    started: Seconds
    """Its start, in seconds since 1970."""
    finished: NonNegativeInt
    """Episodes with a result when it began."""
    planned: NonNegativeInt
    """Episodes of the whole run, as planned then."""
    tasks: NonNegativeInt
    stop_when: str
    """--eval.stop_when."""
    against: str | None
    """The absolute path of the run of --against."""
    stopped: str | None = None
    """Why a stop rule ended it early; added by the next session."""

    def same_plan(self, other: SessionPlan) -> bool:
        """Tell whether both sessions had the same number of episodes and the same stop rules."""
        mine = (self.planned, self.tasks, self.stop_when, self.against)
        return mine == (other.planned, other.tasks, other.stop_when, other.against)

    @property
    def rules(self) -> dict[str, Any]:
        """The settings of its stop rules, nested as in ``run.json``."""
        return {"eval": {"stop_when": self.stop_when}, "against": self.against}

    @property
    def rule_flags(self) -> list[str]:
        """Its stop rules as flags."""
        flags = [] if self.stop_when == "never" else [f"--eval.stop_when={self.stop_when}"]
        return flags if self.against is None else [*flags, f"--against={self.against}"]


@dataclass(frozen=True)
class RunProgress:
    """How the run goes at this moment."""

    elapsed_s: Seconds
    steps: NonNegativeInt
    """Simulator steps taken so far by all workers of this session."""
    batches: NonNegativeInt
    batched_requests: NonNegativeInt
    infer_s: Seconds = 0.0
    """Seconds of inference."""
    calls: dict[_Size, NonNegativeInt] = field(default_factory=dict)
    """Histogram of its calls by duration; keys are buckets of ``latency.bucket_of``."""

    @property
    def steps_per_s(self) -> float:
        """Simulator steps per second since the start."""
        return self.steps / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def mean_batch(self) -> float | None:
        """Mean number of episodes answered by one call of the policy; None when none was needed."""
        return self.batched_requests / self.batches if self.batches else None
