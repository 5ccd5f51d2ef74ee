"""The action expert: a narrow decoder that attends to the language model's KV cache.

In joint layers, action tokens attend to the cache and to each other. In cross layers, they attend
to a projection of the cache only. The projection is the same in every denoising step, so it is
computed once.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from proctor.policies.smolvla.layers import (
    LlamaLayer,
    RotaryEmbedding,
    additive_mask,
    apply_rope,
    attend,
    rotary_embedding,
)
from proctor.policies.smolvla.vlm import TextSizes


class ExpertCache(NamedTuple):
    """KV cache for action tokens: computed once per query, used in every denoising step."""

    keys: list[Tensor]
    """Keys of every layer of the expert, [B, P, h, D]; ``values`` have the same shape."""
    values: list[Tensor]
    joint: tuple[RotaryEmbedding, Tensor]
    """Rotary embedding and mask of action tokens in joint layers."""
    cross: tuple[RotaryEmbedding, Tensor]
    """Rotary embedding and mask in cross layers, where positions start at 0."""


def joint_layers(mode: str, every: int, layers: int) -> list[bool]:
    """Return for each layer whether it is joint; the others are cross layers."""
    return ["cross" not in mode or (every > 0 and n % every == 0) for n in range(layers)]


class ActionExpert(nn.Module):
    """The action expert: its layers and its final norm."""

    def __init__(self, width: int, sizes: TextSizes, joint: list[bool]) -> None:
        super().__init__()
        self.joint = joint
        self.head = sizes.head
        self.groups = sizes.num_attention_heads // sizes.num_key_value_heads
        shared = sizes.num_key_value_heads * sizes.head
        inner = mlp_width(width)
        layers = [LlamaLayer(width, inner, sizes, None if own else shared) for own in joint]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(width, eps=sizes.rms_norm_eps)

    @property
    def _stack(self) -> list[LlamaLayer]:
        return cast("list[LlamaLayer]", self.layers)

    def make_cache(
        self, prefix_cache: list[tuple[Tensor, Tensor]], valid: Tensor, length: int
    ) -> ExpertCache:
        """Return the cache that ``length`` action tokens attend to, each causally.

        ``prefix_cache`` holds keys and values of the language model, layer by layer; ``valid``
        masks the prefix's padding.
        """
        keys, values, dtype = [], [], self.norm.weight.dtype
        for layer, joint, (keys_in, values_in) in zip(
            self._stack, self.joint, prefix_cache, strict=True
        ):
            attention = layer.self_attn
            keys_in, values_in = keys_in.to(dtype), values_in.to(dtype)
            keys.append(keys_in if joint else attention.keys(keys_in.flatten(2)))
            values.append(values_in if joint else attention.values(values_in.flatten(2)))
        steps = torch.arange(length, device=valid.device)
        causal = (steps <= steps[:, None]).expand(len(valid), -1, -1)
        allowed = torch.cat([valid[:, None].expand(-1, length, -1), causal], -1)
        count = valid.sum(1, keepdim=True)
        joint_rope = rotary_embedding(count + steps, self.head)
        cross_rope = rotary_embedding(steps[None], self.head)
        return ExpertCache(
            keys,
            values,
            (joint_rope, additive_mask(allowed, self.groups)),
            (cross_rope, additive_mask(valid[:, None])),
        )

    def forward(self, x: Tensor, cache: ExpertCache) -> Tensor:
        """Return action tokens [B, T, width] after all layers."""
        parts = zip(self._stack, self.joint, cache.keys, cache.values, strict=True)
        for layer, joint, keys, values in parts:
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            rope, mask = cache.joint if joint else cache.cross
            if joint:
                own = apply_rope(attention.keys(normed), rope)
                keys = torch.cat([keys, own], 1)
                values = torch.cat([values, attention.values(normed)], 1)
            queries = apply_rope(attention.queries(normed), rope)
            x = layer.add_attention_and_mlp(x, attend(queries, keys, values, mask))
        out: Tensor = self.norm(x)
        return out


def mlp_width(width: int) -> int:
    """Return the inner width of the expert's MLPs."""
    return -(-4 * (2 * width // 3) // 256) * 256
