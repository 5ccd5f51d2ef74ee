"""Reads --perturb and --perturb_levels."""

from __future__ import annotations

from collections.abc import Sequence

from proctor.benchmarks.perturbations import ALL, DIMENSIONS, LEVELS
from proctor.errors import UsageError, did_you_mean


def parse_dimensions(text: str | None) -> tuple[str, ...]:
    """Return the dimensions in the value of ``--perturb``, in their usual order; empty for None."""
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in (*DIMENSIONS, ALL):
            hint = did_you_mean(name, DIMENSIONS) or f" (choose {', '.join(DIMENSIONS)} or {ALL})"
            raise UsageError(
                f"--perturb: there is no dimension {name!r}{hint}", code="perturb.unknown"
            )
    return (ALL,) if ALL in names else tuple(name for name in DIMENSIONS if name in names)


def check_levels(levels: Sequence[int]) -> None:
    """Check that every level exists."""
    for level in levels:
        if level not in LEVELS:
            raise UsageError(
                f"--perturb_levels: there is no level {level} (choose from 1, 2 and 3)",
                code="flag.out-of-range",
            )
    if not levels:
        raise UsageError("--perturb_levels is empty; leave it out for all", code="flag.empty")
