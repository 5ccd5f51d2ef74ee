"""Sinusoidal embedding of diffusion timesteps."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoidal_embedding(time: Tensor, width: int) -> Tensor:
    """Return [B, width], float32, for times [B]: sines, then cosines, at geometric frequencies."""
    half = width // 2
    index = torch.arange(half, device=time.device)
    frequencies = torch.exp(-math.log(10000) / (half - 1) * index)
    angles = time[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
