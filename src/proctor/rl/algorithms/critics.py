"""Parameters of an ensemble of critics, stacked over the critics."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from proctor.config.sections.online import CriticNetworkSettings
from proctor.policies.gaussian_actor.config import MlpSizes
from proctor.policies.gaussian_actor.network import MLP


class CriticEnsemble(nn.Module):
    """Critics of an observation's encoding and an action, with LeRobot's parameter names."""

    def __init__(self, count: int, in_dim: int, settings: CriticNetworkSettings) -> None:
        super().__init__()
        self.count = count
        heads = [_Head(in_dim, settings) for _ in range(count)]
        self.names = [name for name, _ in heads[0].named_parameters()]
        stacks = zip(*(head.parameters() for head in heads), strict=True)
        self.stacks = nn.ParameterList(
            torch.stack([p.detach() for p in parameters]) for parameters in stacks
        )
        self.structure = tuple(heads[0].net.net)
        """The layers of one critic before its output; not its parameters."""

    def named_heads(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every critic's parameters, as views, by LeRobot's names and in its order."""
        for critic in range(self.count):
            for name, stack in zip(self.names, self.stacks, strict=True):
                yield f"critics.{critic}.{name}", stack.detach()[critic]


class _Head(nn.Module):
    """One critic, as LeRobot builds and initialises it."""

    def __init__(self, in_dim: int, settings: CriticNetworkSettings) -> None:
        super().__init__()
        sizes = MlpSizes(settings.hidden_dims, settings.activate_final, settings.final_activation)
        self.net = MLP(in_dim, sizes)
        self.output_layer = nn.Linear(settings.hidden_dims[-1], 1)
        nn.init.orthogonal_(self.output_layer.weight)
