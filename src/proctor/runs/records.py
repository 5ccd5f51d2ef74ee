"""What files of a run hold besides episodes: their format, bounded numbers, how a session goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from proctor.errors import RunFolderError

RECORD_FORMAT = 1
"""Of ``run.json`` and of a journal's line: goes up when who knows this one would misread them. A
record without a number is from before it was written down, and of format 1."""

Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
"""In a file: a million of them still have a sum."""


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""In a file: a duration, or a moment since 1970 while years have four digits."""


Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""In a file: a count, a number or a seed, as exact in a browser as here."""


_Size = Annotated[int, msgspec.Meta(ge=-1000, le=1000)]


def refuse_newer(found: object, known: int, what: str) -> None:
    """Refuse a record whose format is higher than the one we know; lower ones are read.

    Raises:
        RunFolderError: naming both.
    """
    if isinstance(found, int) and found > known:
        raise RunFolderError(
            f"{what} is of format {found}, this Proctor reads up to {known}; "
            "run: pip install --upgrade proctor",
            code="run.too-new",
        )


@dataclass(frozen=True)
class PlannedTask:
    """A task of a run, and how many of its episodes are to be played."""

    suite: str
    task_id: Whole
    name: str
    instruction: str
    max_steps: Whole
    episodes: Whole


@dataclass(frozen=True)
class RunProgress:
    """How the run goes at this moment."""

    elapsed_s: Seconds
    steps: Whole
    """Simulator steps taken so far by all workers of this session."""
    batches: Whole
    batched_requests: Whole
    infer_s: Seconds = 0.0
    """Seconds the policy has worked."""
    calls: dict[_Size, Whole] = field(default_factory=dict)
    """How many of its calls took how long, by ``latency.size_of``."""

    @property
    def steps_per_s(self) -> float:
        """Simulator steps per second since the start."""
        return self.steps / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def mean_batch(self) -> float | None:
        """Mean number of episodes answered by one call of the policy; None when none was needed."""
        return self.batched_requests / self.batches if self.batches else None
