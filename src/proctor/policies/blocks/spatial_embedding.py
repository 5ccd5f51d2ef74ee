"""Learned spatial embedding of a feature map, as in HIL-SERL."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SpatialEmbedding(nn.Module):
    """Sums a feature map over its positions, with learned weights for each channel."""

    def __init__(self, channels: int, height: int, width: int, features: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(channels, height, width, features))
        nn.init.kaiming_normal_(self.kernel, mode="fan_in", nonlinearity="linear")

    def forward(self, feature_map: Tensor) -> Tensor:
        """Return [B, channels * features] of ``feature_map`` [B, channels, height, width]."""
        return torch.einsum("bchw,chwf->bcf", feature_map, self.kernel).flatten(1)
