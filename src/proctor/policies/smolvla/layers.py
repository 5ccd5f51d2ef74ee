"""Llama decoder layers of SmolVLM's language model and of the action expert.

Shapes: B the batch, L tokens, H query heads, h key-value heads, D a head's width.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.blocks.decoder_layer import (
    GatedMlp,
    GroupedQueryProjections,
    grouped_query_attention,
)
from proctor.policies.smolvla.vlm import TextSizes

ROPE_BASE = 10_000.0
"""LeRobot's base; it ignores the base that the language model was trained with."""
_ALIGNED = 8
"""Alignment of mask rows: attention copies masks that are not aligned."""


class RotaryEmbedding(NamedTuple):
    """Rotary position embedding of tokens, each [B, L, 1, D / 2]."""

    cos: Tensor
    sin: Tensor


def rotary_embedding(positions: Tensor, head: int) -> RotaryEmbedding:
    """Return the rotary embedding of ``positions`` [B, L]."""
    exponents = (2.0 / head) * torch.arange(head // 2, dtype=torch.float32, device=positions.device)
    turns = (positions[..., None].float() / ROPE_BASE**exponents)[:, :, None]
    return RotaryEmbedding(turns.cos(), turns.sin())


def apply_rope(x: Tensor, rope: RotaryEmbedding) -> Tensor:
    """Apply rotary embeddings to queries or keys [B, L, H, D], in float32."""
    first, second = x.float().chunk(2, -1)
    cos, sin = rope
    left = torch.addcmul(first * cos, second, sin, value=-1)
    right = torch.addcmul(second * cos, first, sin)
    return torch.cat([left, right], -1).to(x.dtype)


def additive_mask(allowed: Tensor, groups: int = 1) -> Tensor:
    """Return the additive mask: 0 where ``allowed`` [B, Lq, Lk], else minus infinity.

    ``groups`` is the number of query heads per key-value head; they become extra rows.
    """
    keys = allowed.shape[-1]
    forbidden = F.pad(~allowed.repeat(1, groups, 1), (0, -keys % _ALIGNED))
    scores = torch.zeros(forbidden.shape, device=allowed.device)
    return scores.masked_fill(forbidden, -torch.inf)[:, None, :, :keys]


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Return the attention of queries [B, Lq, H, D] over keys and values [B, Lk, h, D]."""
    q, k, v = (part.transpose(1, 2) for part in (queries, keys, values))
    return grouped_query_attention(q, k, v, mask.to(q.dtype))


class LlamaLayer(nn.Module):
    """A decoder layer; ``asked``: width of the tokens that keys and values come from, if other."""

    def __init__(
        self, width: int, inner: int, sizes: TextSizes, kv_width: int | None = None
    ) -> None:
        super().__init__()
        heads, kv_heads = sizes.num_attention_heads, sizes.num_key_value_heads
        self.self_attn = GroupedQueryProjections(width, heads, kv_heads, sizes.head, kv_width)
        self.mlp = GatedMlp(width, inner, F.silu)
        self.input_layernorm = nn.RMSNorm(width, eps=sizes.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=sizes.rms_norm_eps)

    def add_attention_and_mlp(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return tokens after the residual of ``attended`` [B, L, H * D] and the MLP."""
        x = x + self.self_attn.o_proj(attended)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class LlamaModel(nn.Module):
    """The language model's first layers."""

    def __init__(self, sizes: TextSizes, layers: int) -> None:
        super().__init__()
        width, inner = sizes.hidden_size, sizes.intermediate_size
        self.embed_tokens = nn.Embedding(sizes.vocab_size, width)
        self.layers = nn.ModuleList([LlamaLayer(width, inner, sizes) for _ in range(layers)])
        self.norm = nn.RMSNorm(width, eps=sizes.rms_norm_eps)

    def forward(
        self, x: Tensor, rope: RotaryEmbedding, mask: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the KV cache of tokens [B, L, width] in every layer; keys are rotated.

        The output of the last layer is not computed.
        """
        cache: list[tuple[Tensor, Tensor]] = []
        for layer in cast("list[LlamaLayer]", self.layers):
            normed = layer.input_layernorm(x)
            attention = layer.self_attn
            keys, values = apply_rope(attention.keys(normed), rope), attention.values(normed)
            cache.append((keys, values))
            if len(cache) < len(self.layers):
                queries = apply_rope(attention.queries(normed), rope)
                x = layer.add_attention_and_mlp(x, attend(queries, keys, values, mask))
        return cache
