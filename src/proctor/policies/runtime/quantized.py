"""Weights as 8-bit whole numbers: a quarter of float32's memory, half of bfloat16's.

Each row of a matrix is kept as whole numbers from -127 to 127 and one scale. They become what the
layer computes in when they are used, so activations are as they were, and a product's sums too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.errors import UsageError

_FEWEST = 2**14
"""Weights of a matrix that are worth it."""


class Int8Linear(nn.Module):
    """A linear layer whose matrix is kept as 8-bit numbers."""

    numbers: Tensor
    scale: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach()
        scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
        self.register_buffer("numbers", (weight / scale).round_().to(torch.int8))
        self.register_buffer("scale", scale.to(weight.dtype))
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:
        """The matrix as a layer has it, for who looks at it."""
        return self.numbers.to(self.scale.dtype) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b."""
        y = F.linear(x, self.numbers.to(x.dtype)) * self.scale[:, 0].to(x.dtype)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def quantize(network: nn.Module) -> None:
    """Put an ``Int8Linear`` in the place of every large enough linear layer of ``network``.

    Raises:
        UsageError: there is none.
    """
    found = False
    for owner in list(network.modules()):
        for name, layer in list(owner.named_children()):
            # Not those inside torch's attention: it reads their matrices, and never calls them.
            if type(layer) is nn.Linear and layer.weight.numel() >= _FEWEST:
                setattr(owner, name, Int8Linear(layer))
                found = True
    if not found:
        raise UsageError(
            f"quantize: {type(network).__name__} has no linear layer of {_FEWEST:,} weights or more"
        )
