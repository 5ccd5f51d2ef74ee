"""Exponential moving average (EMA) of the weights, often a better policy than the last weights.

The decay of the n-th update follows diffusers' EMAModel, with s = n - update_after_step - 1. It is
0 for s <= 0, so that the average starts as a copy. Then it is 1 - (1 + s / inv_gamma) ** -power,
clipped to [``min_decay``, ``max_decay``], or the constant ``decay`` if given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from proctor.config.sections.training import EmaSettings
from proctor.errors import UsageError
from proctor.policies.runtime.network import Network
from proctor.training.data.sharding import local_shard, shard_like


def decay_at(settings: EmaSettings, update: int) -> float:
    """Return the decay of an update; the first update is 1."""
    step = update - settings.update_after_step - 1
    if step <= 0:
        return 0.0
    if settings.decay is not None:
        return settings.decay
    rising: float = 1 - (1 + step / settings.inv_gamma) ** -settings.power
    return max(settings.min_decay, min(rising, settings.max_decay))


class WeightAverage:
    """The EMA of all parameters, in their order."""

    def __init__(self, settings: EmaSettings, parameters: Iterable[nn.Parameter]) -> None:
        self.settings = settings
        self.updates = 0
        self.weights = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self, parameters: Iterable[nn.Parameter]) -> None:
        """Update every average with its parameter."""
        self.updates += 1
        share = 1 - decay_at(self.settings, self.updates)
        now = [local_shard(parameter.detach()) for parameter in parameters]
        torch._foreach_lerp_([local_shard(weight) for weight in self.weights], now, share)

    def weights_of(self, network: Network) -> dict[str, Tensor]:
        """Return the state dict of ``network`` with the averages as its parameters."""
        averages = dict(zip(map(id, network.parameters()), self.weights, strict=True))
        state = network.state_dict(keep_vars=True)
        return {name: averages.get(id(value), value.detach()) for name, value in state.items()}

    def state(self) -> dict[str, Any]:
        """Return the state for a resumed run, with diffusers' names."""
        settings = self.settings
        always = settings.decay  # encoded as by LeRobot; diffusers' constant decay also rises
        return {
            "decay": settings.max_decay if always is None else always,
            "min_decay": settings.min_decay if always is None else always,
            "optimization_step": self.updates,
            "update_after_step": settings.update_after_step,
            "use_ema_warmup": True,
            "inv_gamma": settings.inv_gamma,
            "power": settings.power,
            "shadow_params": self.weights,
        }

    def load(self, state: dict[str, Any], where: str) -> None:
        """Load a state; ``where`` names its file in errors."""
        try:
            found: list[Tensor] = list(state["shadow_params"])
            self.updates = int(state["optimization_step"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{where} does not contain an EMA of weights: {error!r}",
                code="checkpoint.unreadable",
            ) from None
        if [tuple(w.shape) for w in found] != [tuple(w.shape) for w in self.weights]:
            raise UsageError(
                f"{where} contains the EMA of another network",
                code="checkpoint.shape-mismatch",
            )
        self.weights = [
            shard_like(w.to(old.device, old.dtype), old)
            for w, old in zip(found, self.weights, strict=True)
        ]
