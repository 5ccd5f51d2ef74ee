"""Small layers and functions that several policy families share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn


class Layers(nn.Sequential):
    """nn.Sequential with a forward of our own; parameter names are the same.

    torch.compile silently skips modules whose forward is defined in torch's own files.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers in order."""
        for layer in self:
            x = layer(x)
        return x


def masked_mean(errors: Tensor, is_pad: Tensor) -> Tensor:
    """Return the mean of errors [B, T, A] over the actions that are not padding.

    ``is_pad`` [B, T] is True at padded actions; a batch of padding alone gives 0.
    """
    valid = ~is_pad[..., None]
    n_valid = (valid.sum() * errors.shape[-1]).clamp(min=1)
    return (errors * valid).sum() / n_valid


def sinusoidal_embedding(time: Tensor, width: int) -> Tensor:
    """Return [B, width], float32, for times [B]: sines, then cosines, at geometric frequencies."""
    half = width // 2
    index = torch.arange(half, device=time.device)
    frequencies = torch.exp(-math.log(10000) / (half - 1) * index)
    angles = time[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys [..., D] by their positions.

    Number i of the first half of a head pairs with number i of the second half; ``cos`` and ``sin``
    [..., D] repeat the angles for both halves.
    """
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class SpatialEmbedding(nn.Module):
    """Sums a feature map over its positions, with learned weights for each channel."""

    def __init__(self, channels: int, height: int, width: int, features: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(channels, height, width, features))
        nn.init.kaiming_normal_(self.kernel, mode="fan_in", nonlinearity="linear")

    def forward(self, feature_map: Tensor) -> Tensor:
        """Return [B, channels * features] of ``feature_map`` [B, channels, height, width]."""
        return torch.einsum("bchw,chwf->bcf", feature_map, self.kernel).flatten(1)


def resize_with_padding(images: Tensor, height: int, width: int) -> Tensor:
    """Resize images [B, 3, H, W] with their aspect ratio; zeros at the left and the top."""
    h, w = images.shape[-2:]
    if (h, w) == (height, width):
        return images
    ratio = max(w / width, h / height)
    fitted = (int(h / ratio), int(w / ratio))
    smaller = F.interpolate(images, fitted, mode="bilinear", align_corners=False)
    return F.pad(smaller, (max(0, width - fitted[1]), 0, max(0, height - fitted[0]), 0))
