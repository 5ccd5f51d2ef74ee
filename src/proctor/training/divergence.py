"""Explains how a training diverged, from the losses and gradient norms of its last steps."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

KEPT_STEPS = 500
"""Steps before a divergence whose losses are written."""
_RISEN, _USUAL = 2.0, 1.25
"""Multiples of the usual loss: above the first it has risen, below the second it has not."""


@dataclass(frozen=True)
class StepRecord:
    """Loss and gradient norm of a step."""

    step: int
    loss: float
    grad_norm: float | None
    """None: gradients were accumulated, without an update."""
    skipped: bool

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient norm are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm or 0.0)


@dataclass(frozen=True)
class Divergence:
    """The last steps of a diverged training, and when it began."""

    records: Sequence[StepRecord]
    last_good: int
    """Last step before the loss rose, or before the first bad step.

    If that is the first step of a resumed session, the step before its checkpoint.
    """
    text: str

    def to_jsonl(self) -> str:
        """Return a line for each step; NaN and infinity become null."""
        rows = ({k: _finite(v) for k, v in asdict(record).items()} for record in self.records)
        return "".join(json.dumps(row) + "\n" for row in rows)


def explain_divergence(records: Sequence[StepRecord], bad_step: int) -> Divergence:
    """Return what happened before ``bad_step``, in words."""
    before = [record for record in records if record.step < bad_step and record.is_finite]
    if not before and bad_step == 1:
        return Divergence(records, 0, "it is the first step: check the dataset's statistics")
    if not before:  # the records are those of a resumed session
        resumed = bad_step - 1
        text = f"it is the first step after the checkpoint of step {resumed:,}, which may be bad"
        return Divergence(records, resumed - 1, text)
    usual, last = median(record.loss for record in before), before[-1]
    norms = [record.grad_norm for record in before if record.grad_norm is not None]
    about_norms = f" (gradient norm {norms[-1]:.3g}, median {median(norms):.3g})" if norms else ""
    if last.loss <= _RISEN * usual:
        text = (
            f"until the step before, the loss was as usual: {last.loss:.3g}, median {usual:.3g}"
            f"{about_norms}"
        )
        return Divergence(records, bad_step - 1, text)
    low = [record for record in before if record.loss <= _USUAL * usual]
    text = (
        f"the loss rose from {low[-1].loss:.3g} at step {low[-1].step:,} to {last.loss:.3g} at "
        f"step {last.step:,}{about_norms}"
    )
    return Divergence(records, low[-1].step, text)


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None
