"""GR00T's own form of real-time chunking: a new chunk starts from the rest of the old one.

The first actions start from the old chunk instead of noise. Those that are executed during the
inference are frozen; the velocity of the others grows exponentially to full strength.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

from proctor.policies.blocks.rtc import HAS_LEFT, LEFT_OVER, ChunkGuidance
from proctor.policies.groot.head import Prefix


def prefix_of(
    guide: ChunkGuidance, inputs: Mapping[str, Tensor], noise: Tensor, rate: float
) -> Prefix:
    """Return the prefix of new chunks like ``noise`` [B, T, A] for the states in ``inputs``."""
    left = guide.chunk - guide.every
    overlap = min(left, guide.rtc.execution_horizon)
    old = inputs[LEFT_OVER][:, left - overlap : left].to(noise.dtype)
    room, size = noise.shape[1:]
    actions = F.pad(old, (0, size - old.shape[-1], 0, room - overlap))
    steps = [1.0] * overlap + [0.0] * (room - overlap)
    counts = _column(steps, noise) * inputs[HAS_LEFT].to(noise.dtype)[:, None, None]
    factors = strengths(overlap, min(guide.delay, overlap), rate) + [1.0] * (room - overlap)
    strength = 1 + counts * (_column(factors, noise) - 1)
    return Prefix(actions, counts, strength)


def strengths(overlap: int, frozen: int, rate: float) -> list[float]:
    """Return the velocity's factor at each of ``overlap`` actions, the first ones frozen."""
    inner = overlap - frozen
    ramp = [1 - math.exp(-rate * n / (inner + 1)) for n in range(inner + 2)]
    whole = max(ramp[-1], 1e-8)
    return [0.0] * frozen + [value / whole for value in ramp[1:-1]]


def _column(values: list[float], like: Tensor) -> Tensor:
    """Return [T, 1], made on the device, as CUDA graphs need."""
    made = [torch.full((1, 1), v, dtype=like.dtype, device=like.device) for v in values]
    return torch.cat(made)
