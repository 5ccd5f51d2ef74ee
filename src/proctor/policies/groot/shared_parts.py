"""What the networks of GR00T N1.7 and N1.5 have in common: sizes, frozen parts and precision."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from proctor.policies.groot.head import ActionHead
from proctor.policies.groot.sizes import GrootSizes


class PaddedSizes(Protocol):
    """The padded sizes of a config."""

    max_state_dim: int
    max_action_dim: int


def check_padded_sizes(config: PaddedSizes, base: GrootSizes) -> None:
    """Refuse padded sizes that are not those of the base model."""
    for name in ("max_state_dim", "max_action_dim"):
        ours, theirs = getattr(config, name), getattr(base, name)
        if ours != theirs:
            raise ValueError(f"{name} is {ours}, but the base model has {theirs}")


def projector_of(head: ActionHead, sizes: GrootSizes) -> list[nn.Module]:
    """Return the parts that ``tune_projector`` trains."""
    positions = [head.position_embedding] if sizes.add_pos_embed else []
    return [head.state_encoder, head.action_encoder, head.action_decoder, *positions]


def eval_frozen(is_trained: Mapping[nn.Module, bool]) -> None:
    """Put the parts that are not trained into evaluation mode."""
    for module, trained in is_trained.items():
        if not trained:
            module.eval()


def bf16_autocast(
    device: torch.device, weights: torch.dtype, *, use_bf16: bool
) -> AbstractContextManager[Any]:
    """Return bfloat16 autocast for float32 weights if ``use_bf16``, as LeRobot does."""
    wanted = use_bf16 and weights == torch.float32
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted)
