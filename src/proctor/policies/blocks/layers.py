"""A sequential container that torch.compile compiles."""

from __future__ import annotations

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
