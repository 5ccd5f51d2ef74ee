"""Compare the control rate and action range of the demonstrations with those of an environment.

An evaluation only notes differences: the rates that datasets and environments declare are often
wrong, and LeRobot compares neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proctor.errors import SpecMismatch
from proctor.features import Array, Interface

_FAR, _TINY = 1.0, 0.01
"""Limits as multiples of the environment's range: how far actions may leave it, and the least
share that they should fill."""


@dataclass(frozen=True)
class ActionRange:
    """The range of demonstrated actions: of most (1st to 99th percentile) and of all."""

    usual: tuple[Array, Array]
    whole: tuple[Array, Array]


def fps_notes(recorded: int | None, interface: Interface) -> list[str]:
    """Return a note if demonstrations and environment have different control rates."""
    if recorded is None or interface.fps is None or recorded == interface.fps:
        return []
    return [
        f"the demonstrations have {recorded} actions per second, {interface.name} executes "
        f"{interface.fps}: the policy moves at another speed than demonstrated"
    ]


def range_notes(found: ActionRange | None, interface: Interface) -> list[str]:
    """Return a note if the demonstrated actions seem to be in other units."""
    if found is None or found.usual[0].shape != (interface.action.size,):
        return []
    low, high = interface.action.bounds
    width = high - low
    if not np.isfinite(width).any():
        return []
    least, most = found.usual
    outside = np.where(np.isfinite(width), np.maximum(low - least, most - high) / width, -np.inf)
    worst = int(outside.argmax())
    if outside[worst] > _FAR:
        what = "clips it" if interface.action.clipped else "expects it"
        return [
            f"number {worst} of the demonstrated actions goes from {least[worst]:.3g} to "
            f"{most[worst]:.3g}, {interface.name} {what} to [{low[worst]:.3g}, {high[worst]:.3g}]: "
            "they may be in other units"
        ]
    filled = np.where(np.isfinite(width), (most - least) / width, np.inf)
    if filled.max() < _TINY:
        return [
            f"the demonstrated actions fill less than {_TINY:.0%} of the range that "
            f"{interface.name} takes: they may be in other units"
        ]
    return []


def refuse_disjoint(found: ActionRange | None, interface: Interface) -> None:
    """Refuse demonstrations whose actions all lie outside the environment's clipping range."""
    action = interface.action
    if found is None or not action.clipped or found.whole[0].shape != (action.size,):
        return
    (low, high), (least, most) = action.bounds, found.whole
    slack = np.where(np.isfinite(high - low), 0.01 * (high - low), 0)
    for number in np.flatnonzero((most < low - slack) | (least > high + slack)).tolist():
        raise SpecMismatch(
            f"number {number} of every demonstrated action is outside of the range that "
            f"{interface.name} clips it to ([{low[number]:.3g}, {high[number]:.3g}], demonstrated: "
            f"{least[number]:.3g} to {most[number]:.3g}): leave --env out, or choose the one that "
            "the dataset was recorded in",
            code="policy.action-range-mismatch",
        )


def action_range(stats: dict[str, Array]) -> ActionRange | None:
    """Return the range in the statistics of actions; None if they lack min and max."""
    flat = {name: np.asarray(value, np.float64).ravel() for name, value in stats.items()}
    if not flat.keys() >= {"min", "max"}:
        return None
    whole = flat["min"], flat["max"]
    usual = (flat["q01"], flat["q99"]) if flat.keys() >= {"q01", "q99"} else whole
    return ActionRange(usual, whole)
