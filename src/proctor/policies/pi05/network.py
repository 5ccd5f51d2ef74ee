"""pi0.5 (Physical Intelligence, 2025): as pi0, but the state is among the words.

The expert has tokens of actions only, and hears of the time in every norm, which it scales, shifts
and gates. What the time says to norms is the same for all rows: it is computed for all steps of a
chunk at once.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.pi0.config import FlowConfig
from proctor.policies.pi0.network import Flow


class Pi05(Flow):
    """The network; attribute names are those of LeRobot's checkpoints."""

    adaptive = True
    n_before = 0

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config)
        width = self.expert.size.width
        self.time_mlp_in = nn.Linear(width, width)
        self.time_mlp_out = nn.Linear(width, width)

    def renamed(self, key: str) -> str:
        """Return a name of pi0's as pi0.5 has it."""
        return key.removeprefix("action_") if key.startswith("action_time_mlp_") else key

    def condition(self, time: Tensor) -> Tensor:
        """Return what embedded times [R, width] say to the norms, before each hears its own."""
        return F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(time))))

    def told(self, time: Tensor) -> list[Tensor]:
        """Return what every norm hears."""
        return self.expert.modulations(self.condition(time))

    def tokens(self, inputs: dict[str, Tensor], x: Tensor, told: list[Tensor]) -> Tensor:
        """Return the tokens of actions."""
        tokens: Tensor = self.action_in_proj(x)
        return tokens
