"""pi0.5 (Physical Intelligence, 2025): pi0 with the state in the prompt and adaptive norms.

The expert has action tokens only. The time gives every norm a scale, a shift and a gate. They are
the same for all rows, and are computed for all denoising steps at once.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.pi0.config import FlowConfig
from proctor.policies.pi0.network import FlowMatchingNetwork


class Pi05(FlowMatchingNetwork):
    """The network; attribute names are those of LeRobot's checkpoints."""

    adaptive = True
    n_before = 0

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config)
        width = self.expert.size.width
        self.time_mlp_in = nn.Linear(width, width)
        self.time_mlp_out = nn.Linear(width, width)

    def renamed(self, key: str) -> str:
        """Return pi0.5's name for a pi0 parameter."""
        return key.removeprefix("action_") if key.startswith("action_time_mlp_") else key

    def condition(self, time: Tensor) -> Tensor:
        """Return the condition of the adaptive norms for embedded times [R, width]."""
        return F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(time))))

    def time_conditioning(self, time: Tensor) -> list[Tensor]:
        """Return scale, shift and gate of every adaptive norm."""
        return self.expert.modulations(self.condition(time))

    def tokens(self, inputs: dict[str, Tensor], x: Tensor, conditioning: list[Tensor]) -> Tensor:
        """Return the action tokens."""
        tokens: Tensor = self.action_in_proj(x)
        return tokens
