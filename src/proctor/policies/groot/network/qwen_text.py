"""Qwen3-VL's language model: decoder layers with three-axis rotary embeddings (M-RoPE).

Every token has a position in time, in height and in width. For text they are equal. Frequency i of
a head turns by height if i % 3 == 1, by width if i % 3 == 2, and by time else and beyond the
sections of height and width.

B is the batch, S the tokens, D the width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.blocks.decoder_layer import (
    GatedMlp,
    GroupedQueryProjections,
    grouped_query_attention,
)
from proctor.policies.blocks.layers import apply_rotary
from proctor.policies.groot.network.qwen_sizes import TextSizes


class TokenPlaces(NamedTuple):
    """Rotary embeddings, attention mask and padding of tokens."""

    cos: Tensor
    """Rotary embedding [1, S, head]; ``sin`` has the same shape."""
    sin: Tensor
    mask: Tensor
    """True where a token may attend, [B, 1, groups * S, S]."""
    attends: Tensor | None
    """0 for tokens whose attention output is 0, [B, S, 1]; None: all tokens attend."""


def axis_rotary(positions: Tensor, sizes: TextSizes) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [1, S, head] of positions [3, S] in time, height and width."""
    rope, half = sizes.rope_parameters, sizes.head_dim // 2
    number = torch.arange(half, device=positions.device)
    frequencies = rope.rope_theta ** -(number.float() * 2 / sizes.head_dim)
    angles = positions.float()[..., None] * frequencies  # [3, S, half]
    time, height, width = angles.unbind(0)
    _, rows, columns = rope.mrope_section
    by_height = (number % 3 == 1) & (number < 3 * rows)
    by_width = (number % 3 == 2) & (number < 3 * columns)
    mixed = torch.where(by_height, height, torch.where(by_width, width, time))
    both = torch.cat([mixed, mixed], -1)[None]
    return both.cos(), both.sin()


def causal_mask(valid: Tensor, groups: int) -> Tensor:
    """Return the mask [B, 1, groups * S, S]: valid tokens before a token, and the token itself."""
    number = torch.arange(valid.shape[1], device=valid.device)
    earlier, itself = number[:, None] >= number, number[:, None] == number
    allowed = (earlier & valid[:, None]) | itself
    return allowed[:, None].repeat(1, 1, groups, 1)


class RmsNorm(nn.RMSNorm):
    """RMSNorm in float32 where weights and tokens differ in dtype, as under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        """Return normalised tokens."""
        if x.dtype == self.weight.dtype:
            return super().forward(x)
        weight = self.weight.float()
        return F.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)


class QwenAttention(GroupedQueryProjections):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, sizes: TextSizes) -> None:
        super().__init__(
            sizes.hidden_size,
            sizes.num_attention_heads,
            sizes.num_key_value_heads,
            sizes.head_dim,
        )
        self.q_norm = RmsNorm(sizes.head_dim, eps=sizes.rms_norm_eps)
        self.k_norm = RmsNorm(sizes.head_dim, eps=sizes.rms_norm_eps)

    def forward(self, x: Tensor, places: TokenPlaces) -> Tensor:
        """Return [B, S, D]."""
        q = self.q_norm(self.queries(x)).transpose(1, 2)
        k = self.k_norm(self.keys(x)).transpose(1, 2)
        v = self.values(x).transpose(1, 2)
        cos, sin = places.cos.to(q.dtype), places.sin.to(q.dtype)
        q, k = (apply_rotary(part, cos, sin).to(v.dtype) for part in (q, k))
        attended = grouped_query_attention(q, k, v, places.mask)
        if places.attends is not None:
            attended = attended * places.attends.to(attended.dtype)
        out: Tensor = self.o_proj(attended)
        return out


class QwenLayer(nn.Module):
    """Pre-norm decoder layer: attention and a gated MLP, each with a residual connection."""

    def __init__(self, sizes: TextSizes) -> None:
        super().__init__()
        self.self_attn = QwenAttention(sizes)
        self.mlp = GatedMlp(sizes.hidden_size, sizes.intermediate_size, F.silu)
        self.input_layernorm = RmsNorm(sizes.hidden_size, eps=sizes.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(sizes.hidden_size, eps=sizes.rms_norm_eps)

    def forward(self, x: Tensor, places: TokenPlaces) -> Tensor:
        """Return [B, S, D]."""
        x = x + self.self_attn(self.input_layernorm(x), places)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class QwenText(nn.Module):
    """Token embeddings and the first decoder layers; the final norm is not used."""

    def __init__(self, sizes: TextSizes, n_layers: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed_tokens = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.layers = nn.ModuleList(QwenLayer(sizes) for _ in range(n_layers))
        self.norm = RmsNorm(sizes.hidden_size, eps=sizes.rms_norm_eps)

    def forward(self, x: Tensor, places: TokenPlaces, deepstack: list[Tensor]) -> Tensor:
        """Return tokens [B, S, D] after the last layer.

        ``deepstack`` [B, S, D] is added after the first layers; it is 0 at text tokens.
        """
        for number, layer in enumerate(self.layers):
            x = layer(x, places)
            if number < len(deepstack):
                x = x + deepstack[number].to(x.dtype)
        return x
