"""Rotary position embeddings (Su et al., 2021)."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys [..., D] by their positions.

    Number i of the first half of a head pairs with number i of the second half; ``cos`` and ``sin``
    [..., D] repeat the angles for both halves.
    """
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
