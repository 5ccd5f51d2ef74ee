"""Records that actors, replay buffers and algorithms exchange.

Transition        one environment step, as numpy arrays without a batch dimension
TransitionBatch   a sample of a replay buffer, as torch tensors
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from proctor.features import Array

if TYPE_CHECKING:
    import torch


_LARGEST = 1e18
"""Numbers above it have squares that float32 cannot hold, so that a loss would be infinite."""


@dataclass(frozen=True)
class Transition:
    """One environment step. Images are float32 [C, H, W] in 0..1 or uint8 [C, H, W]."""

    observation: Mapping[str, Array]
    action: Array
    """The executed action, float32 [A]: the human's during an intervention, else the policy's."""
    reward: float
    next_observation: Mapping[str, Array]
    done: bool
    """Whether the episode terminated; LeRobot's name. A time limit sets only ``truncated``."""
    truncated: bool = False
    complementary_info: Mapping[str, float] = field(default_factory=dict)
    """Numbers that travel along: ``discrete_penalty`` and ``is_intervention`` (0 or 1)."""

    @property
    def is_learnable(self) -> bool:
        """Whether every number, as float32, can be learned from; LeRobot drops the others too."""
        arrays = (*self.observation.values(), *self.next_observation.values(), self.action)
        numbers = (self.reward, *self.complementary_info.values())
        return all(abs(number) < _LARGEST for number in numbers) and all(
            array.dtype == np.uint8 or bool(np.abs(array).max(initial=0) < _LARGEST)
            for array in arrays
        )

    @property
    def is_intervention(self) -> bool:
        """Whether a human or an expert chose the action."""
        return bool(self.complementary_info.get("is_intervention", 0.0))


@dataclass
class TransitionBatch:
    """A batch of transitions on one device."""

    observation: dict[str, torch.Tensor]
    action: torch.Tensor  # float32 [B, A]
    reward: torch.Tensor  # float32 [B]
    next_observation: dict[str, torch.Tensor]
    done: torch.Tensor  # float32 [B]
    truncated: torch.Tensor  # float32 [B]
    complementary_info: dict[str, torch.Tensor] = field(default_factory=dict)
