"""Skips updates with bad gradients, as decided on the device: nothing waits for the decision.

A gradient is bad if it is NaN or infinite: it would spoil all weights. With a factor K, it is also
bad if its norm exceeds K times the running average of the norms of earlier updates: one odd batch
then changes no weights and none of Adam's moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from proctor.errors import UsageError

_HORIZON = 100
"""Updates of the running average; before as many, only non-finite gradients are bad."""


class GradientGuard:
    """Tells which updates to skip; its average is part of a checkpoint."""

    def __init__(self, factor: float, device: torch.device) -> None:
        """Skip norms above ``factor`` times their average; 0: only those that are not finite."""
        self._factor = factor
        self._mean = torch.zeros((), device=device)
        self._updates = torch.zeros((), device=device)
        """Updates in the average, at most ``_HORIZON``."""

    def is_bad(self, norm: Tensor) -> Tensor:
        """Return whether to skip the update of a gradient with this norm, as a tensor."""
        bad = torch.isfinite(norm).logical_not()
        if not self._factor:
            return bad
        is_known = self._updates >= _HORIZON
        bad = bad | (is_known & (norm > self._factor * self._mean))
        share = 1 / (self._updates + 1).clamp(max=_HORIZON)
        self._mean = torch.where(bad, self._mean, torch.lerp(self._mean, norm, share))
        self._updates = torch.where(bad, self._updates, (self._updates + 1).clamp(max=_HORIZON))
        return bad

    def state(self) -> dict[str, float] | None:
        """Return the state for a resumed run; None if there is none."""
        if not self._factor:
            return None
        return {"mean": float(self._mean), "updates": float(self._updates)}

    def load(self, state: Mapping[str, Any], where: str) -> None:
        """Load a state; ``where`` names its file in errors."""
        try:
            mean, updates = float(state["mean"]), float(state["updates"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{where} is not a valid training state: {error!r}", code="checkpoint.invalid-state"
            ) from None
        self._mean.fill_(mean)
        self._updates.fill_(updates)


def update_unless(optimizer: torch.optim.Optimizer, bad: Tensor, *, sharded: bool) -> None:
    """Update the weights, unless the gradient is ``bad``.

    Fused optimisers skip the update on the device. They have no such option for sharded weights,
    and others, as on Apple GPUs, have none at all: those wait for the decision.
    """
    if sharded or not all(group.get("fused") for group in optimizer.param_groups):
        if not bool(bad):
            optimizer.step()
        return
    optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
    optimizer.step()
