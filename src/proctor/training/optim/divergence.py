"""Explains how a training diverged, from the losses and gradient norms of its last steps."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

KEPT_STEPS = 500
"""Steps before a divergence whose losses are written."""
COMPARED_STEPS = 2000
"""Steps with which the newest ones are compared."""
_RISEN, _USUAL = 2.0, 1.25
"""Multiples of the usual loss: above the first it has risen, below the second it has not."""
_NEW, _OLD = 50, 200
"""Updates whose medians show a rise, and earlier ones that are needed to compare them with."""
_LOSS_FACTOR, _NORM_FACTOR, _STILL_USUAL = 1.25, 4.0, 2.0
"""Multiples of earlier medians: a rise has both the loss's and the gradient norm's. It began when
the norms' running median left the third."""
_RUNNING = 20


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


class RiseWatch:
    """Finds divergences whose values are all finite, by comparing a session's newest steps."""

    def __init__(self) -> None:
        self._compared_at = 0
        self._risen = False

    def newly_risen(self, records: Sequence[StepRecord]) -> Divergence | None:
        """Return a divergence that the newest steps show, once; they are compared every 50 steps.

        Loss and gradient norms have risen together and stay there. Neither is enough alone: a
        larger dataset raises the loss, and gradients may grow while the loss falls.
        """
        if not records or records[-1].step < self._compared_at + _NEW:
            return None
        self._compared_at = records[-1].step
        before, found = self._risen, _find_rise(records)
        self._risen = found is not None
        return None if before else found


def _find_rise(records: Sequence[StepRecord]) -> Divergence | None:
    updates = [record for record in records if record.grad_norm is not None and record.is_finite]
    old, new = updates[:-_NEW], updates[-_NEW:]
    if len(old) < _OLD:
        return None
    (old_loss, old_norm), (new_loss, new_norm) = _medians(old), _medians(new)
    if new_loss < _LOSS_FACTOR * old_loss or new_norm < _NORM_FACTOR * old_norm:
        return None
    windows = (updates[end - _RUNNING : end] for end in range(len(updates), _RUNNING - 1, -1))
    usual = (run for run in windows if _medians(run)[1] <= _STILL_USUAL * old_norm)
    last_good = next(usual, updates)[0].step  # alternating norms may have no such window
    text = (
        f"after step {last_good:,} the loss rose from {old_loss:.3g} to {new_loss:.3g} and the "
        f"gradient norm from {old_norm:.3g} to {new_norm:.3g} (medians)"
    )
    return Divergence(records[-KEPT_STEPS:], last_good, text)


def _medians(records: Sequence[StepRecord]) -> tuple[float, float]:
    """Return the medians of loss and gradient norm."""
    loss = median(record.loss for record in records)
    return loss, median(record.grad_norm or 0.0 for record in records)


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
