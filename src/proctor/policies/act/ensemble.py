"""Temporal ensembling: overlapping chunks of one episode, averaged step by step."""

from __future__ import annotations

import torch
from torch import Tensor


class TemporalEnsemble:
    """The running averages of one episode: the mean prediction of all chunks for each coming step.

    The prediction of the i-th oldest chunk has the weight exp(-coeff * i): a positive ``coeff``
    favours old predictions, 0 is the plain mean.
    """

    def __init__(self, coeff: float, chunk_size: int) -> None:
        self.weights = torch.exp(-coeff * torch.arange(chunk_size))
        self.total = torch.cumsum(self.weights, 0)
        self.averages: Tensor | None = None  # [steps ahead, A]
        self.counts = torch.empty(0, dtype=torch.long)  # predictions in each average

    def update(self, chunk: Tensor) -> Tensor:
        """Add the newest chunk [T, A] and return the averaged action [A] of the current step."""
        if self.averages is None:
            merged, counts = chunk, torch.ones(len(chunk), dtype=torch.long)
        else:
            n = len(self.averages)
            old_total, weight = self.total[self.counts - 1], self.weights[self.counts]
            summed = self.averages * old_total[:, None] + chunk[:n] * weight[:, None]
            merged = torch.cat([summed / self.total[self.counts][:, None], chunk[n:]])
            fresh = torch.ones(len(chunk) - n, dtype=torch.long)
            counts = torch.cat([self.counts + 1, fresh])
        self.averages, self.counts = merged[1:], counts[1:]
        return merged[0]
