"""Transformers of GR00T's action head: a diffusion transformer (DiT) and a plain encoder.

Parameter names are those of diffusers. B is the batch, T the tokens, K the keys, D the width, R the
rows of conditions: B in training, and 1 where all rows share a denoising step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.groot.network.sizes import TransformerSizes

_TIME_WIDTH = 256
_NORM_EPS, _OUT_EPS = 1e-5, 1e-6


class KeysAndValues(NamedTuple):
    """Keys and values that tokens attend to."""

    keys: Tensor
    """[B, heads, K, head]; ``values`` has the same shape."""
    values: Tensor
    mask: Tensor | None
    """True where keys are valid, bool [B, 1, 1, K]; None: all."""


class Attention(nn.Module):
    """Multi-head attention with biases, to the tokens themselves or to others."""

    def __init__(self, sizes: TransformerSizes, others: int | None = None) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.num_attention_heads
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(others or width, width)
        self.to_v = nn.Linear(others or width, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width), nn.Dropout(sizes.dropout)])

    def attended(self, tokens: Tensor, mask: Tensor | None = None) -> KeysAndValues:
        """Return keys and values of tokens [B, K, D]; ``mask`` [B, K] is False at padding."""
        shown = None if mask is None else mask[:, None, None]
        return KeysAndValues(self._split(self.to_k(tokens)), self._split(self.to_v(tokens)), shown)

    def forward(self, x: Tensor, other: KeysAndValues) -> Tensor:
        """Return [B, T, D]."""
        q = self._split(self.to_q(x))
        found = F.scaled_dot_product_attention(q, other.keys, other.values, attn_mask=other.mask)
        out: Tensor = self.to_out[1](self.to_out[0](found.transpose(1, 2).flatten(2)))
        return out

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(1, 2)


class GeluProjection(nn.Module):
    """A linear layer with a GELU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, inner]."""
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    """The MLP of a block."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        width, dropout = sizes.width, sizes.dropout
        layers: list[nn.Module] = [
            GeluProjection(width, 4 * width),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
        ]
        self.net = nn.ModuleList([*layers, nn.Dropout(dropout if sizes.final_dropout else 0.0)])

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, D]."""
        for layer in self.net:
            x = layer(x)
        return x


class EncoderBlock(nn.Module):
    """Pre-norm block: self-attention and an MLP, each with a residual connection."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(sizes.width, eps=_NORM_EPS)
        self.attn1 = Attention(sizes)
        self.norm3 = nn.LayerNorm(sizes.width, eps=_NORM_EPS)
        self.ff = FeedForward(sizes)
        self.final_dropout = nn.Dropout(sizes.dropout if sizes.final_dropout else 0.0)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return [B, T, D]; ``mask`` [B, T] is False at padding."""
        normed = self.norm1(x)
        x = x + self.final_dropout(self.attn1(normed, self.attn1.attended(normed, mask)))
        out: Tensor = x + self.ff(self.norm3(x))
        return out


class Encoder(nn.Module):
    """A transformer encoder without positions."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.transformer_blocks = nn.ModuleList(
            EncoderBlock(sizes) for _ in range(sizes.num_layers)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return [B, T, D]."""
        for block in self.transformer_blocks:
            x = block(x, mask)
        return x


class AdaptiveNorm(nn.Module):
    """LayerNorm whose scale and shift are projected from a condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def modulation(self, condition: Tensor) -> Tensor:
        """Return scale and shift [R, 1, 2 D] for conditions [R, D] after their SiLU."""
        found: Tensor = self.linear(condition)[:, None]
        return found

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        """Return the modulated tokens [B, T, D]."""
        scale, shift = modulation.chunk(2, dim=-1)
        return F.layer_norm(x, x.shape[-1:], eps=_NORM_EPS) * (1 + scale) + shift


class DitBlock(nn.Module):
    """Adaptive norm, attention and an MLP; ``others`` is the width of cross-attended tokens."""

    def __init__(self, sizes: TransformerSizes, others: int | None) -> None:
        super().__init__()
        self.norm1 = AdaptiveNorm(sizes.width)
        self.attn1 = Attention(sizes, others)
        self.ff = FeedForward(sizes)
        self.final_dropout = nn.Dropout(sizes.dropout if sizes.final_dropout else 0.0)

    def forward(self, x: Tensor, modulation: Tensor, other: KeysAndValues | None) -> Tensor:
        """Return [B, T, D]; ``other`` None: self-attention."""
        normed = self.norm1(x, modulation)
        other = self.attn1.attended(normed) if other is None else other
        x = x + self.final_dropout(self.attn1(normed, other))
        out: Tensor = x + self.ff(F.layer_norm(x, x.shape[-1:], eps=_NORM_EPS))
        return out


class TimestepEmbedder(nn.Module):
    """Two linear layers on a sinusoidal embedding of the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(_TIME_WIDTH, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, bucket: Tensor) -> Tensor:
        """Embed time buckets [R] to [R, D]."""
        half = _TIME_WIDTH // 2
        number = torch.arange(half, dtype=torch.float32, device=bucket.device)
        angles = bucket.float()[:, None] * (-math.log(10_000.0) * number / (half - 1)).exp()
        waves = torch.cat([angles.cos(), angles.sin()], -1).to(self.linear_1.weight.dtype)
        out: Tensor = self.linear_2(F.silu(self.linear_1(waves)))
        return out


class TimestepEncoder(nn.Module):
    """Holds the embedder under diffusers' name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.timestep_embedder = TimestepEmbedder(width)

    def forward(self, bucket: Tensor) -> Tensor:
        """Embed time buckets [R] to [R, D]."""
        out: Tensor = self.timestep_embedder(bucket)
        return out


class Dit(nn.Module):
    """The diffusion transformer: even blocks cross-attend to a context, odd ones self-attend."""

    def __init__(self, sizes: TransformerSizes, others: int) -> None:
        super().__init__()
        width = sizes.width
        self.timestep_encoder = TimestepEncoder(width)
        self.transformer_blocks = nn.ModuleList(
            DitBlock(sizes, others if number % 2 == 0 else None)
            for number in range(sizes.num_layers)
        )
        self.proj_out_1 = nn.Linear(width, 2 * width)
        self.proj_out_2 = nn.Linear(width, sizes.output_dim)

    def modulations(self, bucket: Tensor) -> list[Tensor]:
        """Return scale and shift of every block, and shift and scale of the output, at times [R].

        Each is [R, 1, 2 D].
        """
        condition = F.silu(self.timestep_encoder(bucket))
        norms = [block.norm1 for block in self.transformer_blocks]
        made = [norm.modulation(condition) for norm in norms]  # type: ignore[operator, union-attr]
        return [*made, self.proj_out_1(condition)[:, None]]

    def forward(
        self, x: Tensor, modulations: Sequence[Tensor], context: Sequence[KeysAndValues | None]
    ) -> Tensor:
        """Return [B, T, output]; ``context`` has what each block attends to, None for itself."""
        for block, modulation, other in zip(
            self.transformer_blocks, modulations, context, strict=False
        ):
            x = block(x, modulation, other)
        shift, scale = modulations[-1].chunk(2, dim=-1)
        normed = F.layer_norm(x, x.shape[-1:], eps=_OUT_EPS)
        out: Tensor = self.proj_out_2(normed * (1 + scale) + shift)
        return out
