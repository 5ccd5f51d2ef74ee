"""8-bit weight quantisation: a quarter of float32's memory, half of bfloat16's.

Each row of a weight matrix is stored as int8 values from -127 to 127 and one scale. The forward
pass converts them to the activations' dtype, so activations and sums keep their precision.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.errors import UsageError

_FEWEST = 2**14
"""Smallest number of weights for which a layer is quantised."""


class Int8Linear(nn.Module):
    """A linear layer with int8 weights."""

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
        """The dequantised weight matrix."""
        return self.numbers.to(self.scale.dtype) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b."""
        y = F.linear(x, self.numbers.to(x.dtype)) * self.scale[:, 0].to(x.dtype)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def quantize(network: nn.Module) -> None:
    """Replace every linear layer of ``network`` that is large enough by an ``Int8Linear``."""
    found = False
    for owner in list(network.modules()):
        for name, layer in list(owner.named_children()):
            # Not subclasses: torch's attention reads its out_proj's weight and never calls it.
            if type(layer) is nn.Linear and layer.weight.numel() >= _FEWEST:
                setattr(owner, name, Int8Linear(layer))
                found = True
    if not found:
        raise UsageError(
            f"quantize: {type(network).__name__} has no linear layer with at least {_FEWEST:,} "
            "weights",
            code="policy.not-quantizable",
        )
