"""The action expert: a narrow decoder that attends to the language model's KV cache.

In joint layers action tokens attend to that cache and to their own keys; in cross layers only to a
projection of the cache, which is the same in every denoising step and computed once.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from proctor.policies.smolvla.layers import (
    Layer,
    Rope,
    attend,
    mask_of,
    rope_at,
    turned,
)
from proctor.policies.smolvla.vlm import TextSizes


class Memory(NamedTuple):
    """KV cache for action tokens: computed once per query, used in every denoising step."""

    keys: list[Tensor]
    """Of every layer of the expert, [B, P, h, D]."""
    values: list[Tensor]
    joint: tuple[Rope, Tensor]
    """Rotary embedding and mask of action tokens in joint layers."""
    cross: tuple[Rope, Tensor]
    """The same in cross layers, where positions start at 0."""


def joint_layers(mode: str, every: int, layers: int) -> list[bool]:
    """Return for each layer whether it is joint."""
    return ["cross" not in mode or (every > 0 and n % every == 0) for n in range(layers)]


class Expert(nn.Module):
    """The expert's layers."""

    def __init__(self, width: int, sizes: TextSizes, joint: list[bool]) -> None:
        super().__init__()
        self.joint = joint
        self.head = sizes.head
        self.groups = sizes.num_attention_heads // sizes.num_key_value_heads
        shared = sizes.num_key_value_heads * sizes.head
        inner = inner_width(width)
        layers = [Layer(width, inner, sizes, None if own else shared) for own in joint]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(width, eps=sizes.rms_norm_eps)

    @property
    def _stack(self) -> list[Layer]:
        return cast("list[Layer]", self.layers)

    def memory(self, seen: list[tuple[Tensor, Tensor]], valid: Tensor, length: int) -> Memory:
        """Return the KV cache of ``length`` action tokens over ``seen``; ``valid`` masks padding.

        Action tokens are causal.
        """
        keys, values, dtype = [], [], self.norm.weight.dtype
        for layer, joint, (found, meant) in zip(self._stack, self.joint, seen, strict=True):
            attention = layer.self_attn
            found, meant = found.to(dtype), meant.to(dtype)
            keys.append(found if joint else attention.keys(found.flatten(2)))
            values.append(meant if joint else attention.values(meant.flatten(2)))
        steps = torch.arange(length, device=valid.device)
        causal = (steps <= steps[:, None]).expand(len(valid), -1, -1)
        all_seen = torch.cat([valid[:, None].expand(-1, length, -1), causal], -1)
        count = valid.sum(1, keepdim=True)
        joint_rope = rope_at(count + steps, self.head)
        cross_rope = rope_at(steps[None], self.head)
        return Memory(
            keys,
            values,
            (joint_rope, mask_of(all_seen, self.groups)),
            (cross_rope, mask_of(valid[:, None])),
        )

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Return action tokens [B, T, width] after all layers."""
        parts = zip(self._stack, self.joint, memory.keys, memory.values, strict=True)
        for layer, joint, keys, values in parts:
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            rope, mask = memory.joint if joint else memory.cross
            if joint:
                own = turned(attention.keys(normed), rope)
                keys = torch.cat([keys, own], 1)
                values = torch.cat([values, attention.values(normed)], 1)
            queries = turned(attention.queries(normed), rope)
            x = layer.after(x, attend(queries, keys, values, mask))
        out: Tensor = self.norm(x)
        return out


def inner_width(width: int) -> int:
    """Return the inner width of the expert's MLPs."""
    return -(-4 * (2 * width // 3) // 256) * 256
