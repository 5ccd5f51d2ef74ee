"""The least time for a run's work on its host, as a fraction of the run's time.

A run has three kinds of work: rendering, inference and physics. Each has a least time under any
schedule. They may overlap (rendering and inference share the GPU), so the limit is the largest of
the three, not their sum. Each is also bounded by the run's own time: a bad reference measurement
cannot make the fraction exceed 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WINDOW_S = 1.0


@dataclass(frozen=True)
class RunWork:
    """The work of a run between its first episode and its last."""

    span_s: float
    renders: float
    batches: int
    requests: int
    infer_s: float
    """Total time of its batches, while everything else ran."""
    sim_s: float
    workers: int
    cores: int


@dataclass(frozen=True)
class Limit:
    """The least seconds for each kind of work, and the run's own."""

    rendering_s: float
    inference_s: float
    physics_s: float
    span_s: float
    unreliable: tuple[str, ...] = ()
    """Kinds of work that took longer alone than in the run: measure again."""

    @property
    def fraction(self) -> float:
        """The largest of the three over the run's time; at most 1."""
        return max(self.rendering_s, self.inference_s, self.physics_s) / self.span_s


def limit_of(work: RunWork, frames_per_s: float, batch_s: Mapping[int, float]) -> Limit:
    """Return the limit of a run.

    ``frames_per_s`` is the best render rate of this host with no other load, and ``batch_s`` the
    least time of a batch of each size on the idle GPU.
    """
    rendering_s = work.renders / max(frames_per_s, 1e-9)
    inference_s = work.batches * least_mean(batch_s, work.requests / max(1, work.batches))
    slower_alone = {"rendering": rendering_s > work.span_s, "inference": inference_s > work.infer_s}
    return Limit(
        rendering_s=min(rendering_s, work.span_s),
        inference_s=min(inference_s, work.infer_s, work.span_s),
        # With more workers than cores, the time includes waiting for a core.
        physics_s=work.sim_s / max(work.cores, work.workers),
        span_s=work.span_s,
        unreliable=tuple(name for name, slower in slower_alone.items() if slower),
    )


def least_mean(batch_s: Mapping[int, float], mean: float) -> float:
    """Return the least mean time of batches whose mean size is ``mean``.

    Only the mean is known, so this is the lower convex hull of the measured times.
    """
    below = [size for size in batch_s if size <= mean]
    above = [size for size in batch_s if size >= mean]
    if not below or not above:
        return min(batch_s.values())
    return min(_between(batch_s, low, high, mean) for low in below for high in above)


def _between(batch_s: Mapping[int, float], low: int, high: int, mean: float) -> float:
    share = (mean - low) / (high - low) if high > low else 0.0
    return (1 - share) * batch_s[low] + share * batch_s[high]


def best_rate(moments: Sequence[float], window_s: float = WINDOW_S) -> float:
    """Return the highest rate of events in any window."""
    ordered, start, most = sorted(moments), 0, 0
    for end, moment in enumerate(ordered):
        while ordered[start] <= moment - window_s:
            start += 1
        most = max(most, end - start + 1)
    return most / window_s
