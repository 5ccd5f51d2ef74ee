"""What ChunkPolicy and training ask of a network: chunks for rollouts, a loss for training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn


class Network(nn.Module, ABC):
    """A torch module that turns normalised observations into normalised action chunks.

    It is a pure function of its inputs: randomness comes in as ``noise``, nothing is remembered.
    """

    takes_history: bool
    """True: inputs are [B, n_obs_steps, ...]; False: only the newest observation, [B, ...]."""
    noise_shape: tuple[int, ...] | None
    """Shape of the standard normal numbers one query needs; None where it needs none."""

    @abstractmethod
    def chunk(self, inputs: dict[str, Tensor], noise: Tensor | None) -> Tensor:
        """Return normalised actions [B, T, A], the first of them for the newest observation."""

    @abstractmethod
    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the training loss of a normalised batch and its named parts, for the log."""

    def new_episode(self) -> Any:
        """Return what one episode has to remember between queries; None where nothing."""
        return None

    def settle(self, chunks: Tensor, states: list[Any]) -> Tensor:
        """Return what is played of ``chunks`` [B, T, A], on the CPU; may change the states."""
        return chunks

    @abstractmethod
    def hot_parts(self) -> list[nn.Module]:
        """Return the modules that are worth compiling."""
