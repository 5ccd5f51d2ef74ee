"""Layers with separate weights for each embodiment (kind of robot).

B is the batch, E the embodiments.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn


class LinearWeights(NamedTuple):
    """Weights of a linear layer, for each row of a batch."""

    weight: Tensor
    """[B, in, out]."""
    bias: Tensor
    """[B, 1, out]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map [B, T, in] to [B, T, out]."""
        return torch.bmm(x.to(self.weight.dtype), self.weight) + self.bias


class EmbodimentLinear(nn.Module):
    """A linear layer for each embodiment."""

    def __init__(self, embodiments: int, size: int, out: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(embodiments, size, out))
        nn.init.normal_(self.W, std=0.02)
        self.b = nn.Parameter(torch.zeros(embodiments, out))

    def of(self, embodiment: Tensor) -> LinearWeights:
        """Return the weights of each row's ``embodiment``, int [B]."""
        return LinearWeights(self.W[embodiment], self.b[embodiment][:, None])


class MlpWeights(NamedTuple):
    """Weights of a two-layer MLP, for each row of a batch."""

    first: LinearWeights
    second: LinearWeights

    def __call__(self, x: Tensor) -> Tensor:
        """Map [B, T, in] to [B, T, out]."""
        return self.second(F.relu(self.first(x)))


class EmbodimentMlp(nn.Module):
    """A two-layer MLP for each embodiment."""

    def __init__(self, embodiments: int, size: int, hidden: int, out: int) -> None:
        super().__init__()
        self.layer1 = EmbodimentLinear(embodiments, size, hidden)
        self.layer2 = EmbodimentLinear(embodiments, hidden, out)

    def of(self, embodiment: Tensor) -> MlpWeights:
        """Return the weights of each row's ``embodiment``."""
        return MlpWeights(self.layer1.of(embodiment), self.layer2.of(embodiment))


class ActionEncoderWeights(NamedTuple):
    """Weights of the action encoder, for each row of a batch."""

    action: LinearWeights
    mixed: LinearWeights
    out: LinearWeights

    def __call__(self, actions: Tensor, time: Tensor) -> Tensor:
        """Encode noisy actions [B, T, A] and times [B or 1, D] to tokens [B, T, D]."""
        x = self.action(actions)
        both = torch.cat([x, time.to(x.dtype)[:, None].expand_as(x)], -1)
        return self.out(F.silu(self.mixed(both)))


class ActionEncoder(nn.Module):
    """Encoder of noisy actions and their time, for each embodiment."""

    def __init__(self, embodiments: int, action: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.W1 = EmbodimentLinear(embodiments, action, width)
        self.W2 = EmbodimentLinear(embodiments, 2 * width, width)
        self.W3 = EmbodimentLinear(embodiments, width, width)

    def of(self, embodiment: Tensor) -> ActionEncoderWeights:
        """Return the weights of each row's ``embodiment``."""
        return ActionEncoderWeights(
            *(layer.of(embodiment) for layer in (self.W1, self.W2, self.W3))
        )

    def embed_time(self, bucket: Tensor) -> Tensor:
        """Return the sinusoidal embedding [N, D] of time buckets [N]: sines, then cosines."""
        half = self.width // 2
        number = torch.arange(half, dtype=torch.float32, device=bucket.device)
        angles = bucket.float()[:, None] * (number * (-math.log(10_000.0) / half)).exp()
        return torch.cat([angles.sin(), angles.cos()], -1)
