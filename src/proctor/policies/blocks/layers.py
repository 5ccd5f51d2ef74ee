"""Layers in a row that torch.compile sees."""

from __future__ import annotations

from torch import Tensor, nn


class Layers(nn.Sequential):
    """Layers in a row, with a forward of our own.

    ``compile`` of torch's own Sequential leaves it as it is, without a word: it skips whatever
    stands in torch's files. Names of weights are the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return what the last layer makes of ``x``."""
        for layer in self:
            x = layer(x)
        return x
