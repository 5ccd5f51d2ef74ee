"""Gemma's transformer (Gemma Team, 2024), as a language model and as an action expert.

An action expert has its own weights and attends, in every layer, to the language model's KV cache
of that layer. The cache does not depend on the expert, so it is computed once per query.

B is the batch, S the query tokens, K the key tokens, H the heads, D a head's width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from proctor.policies.blocks.decoder_layer import (
    GatedMlp,
    GroupedQueryProjections,
    grouped_query_attention,
)
from proctor.policies.blocks.layers import apply_rotary
from proctor.policies.pi0.sizes import GemmaSize

_EPS = 1e-6
_gelu_tanh = partial(F.gelu, approximate="tanh")
_ROPE_BASE = 10_000.0

KVCache: TypeAlias = tuple[Tensor, Tensor]
"""KV cache of a layer: rotated keys and values, each [B, KV heads, K, D]."""


class TokenPositions(NamedTuple):
    """Rotary position embeddings of tokens, and their attention mask."""

    cos: Tensor
    """Rotary embedding of queries and keys, [B, 1, S, D]; ``sin`` has the same shape."""
    sin: Tensor
    mask: Tensor
    """True where a token may attend, [B, 1, S or 1, K]."""


def token_positions(positions: Tensor, mask: Tensor, size: GemmaSize) -> TokenPositions:
    """Return the rotary embeddings and the mask of tokens at ``positions`` [B, S]."""
    halves = torch.arange(0, size.head_dim, 2, device=positions.device) / size.head_dim
    angles = positions[..., None].float() * _ROPE_BASE**-halves
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    if mask.shape[2] > 1:  # grouped-query attention: heads that share keys become extra rows
        mask = mask.repeat(1, 1, size.n_heads // size.n_kv_heads, 1)
    return TokenPositions(angles.cos(), angles.sin(), mask)


class Gemma(nn.Module):
    """Decoder layers and a final norm; as a language model it also has token embeddings."""

    def __init__(self, size: GemmaSize, vocabulary: int | None, *, adaptive: bool = False) -> None:
        super().__init__()
        self.size = size
        if vocabulary is not None:
            self.embed_tokens = nn.Embedding(vocabulary, size.width)
        self.layers = nn.ModuleList(GemmaLayer(size, adaptive=adaptive) for _ in range(size.depth))
        self.norm = AdaptiveRmsNorm(size.width) if adaptive else RmsNorm(size.width)
        self.saves_memory = False
        """Gradient checkpointing: recompute activations to save memory."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embeddings [B, S, width] of tokens [B, S], scaled by sqrt(width)."""
        vectors: Tensor = self.embed_tokens(tokens)
        return vectors * torch.full((), math.sqrt(self.size.width)).to(vectors.dtype)

    def modulations(self, cond: Tensor) -> list[Tensor]:
        """Return scale, shift and gate of every adaptive norm for conditions [R, width].

        The norms come in the order in which ``forward`` uses them, the final norm last.
        """
        norms = [n for layer in self.layers for n in layer.norms]  # type: ignore[union-attr]
        return [norm.dense(cond)[:, None] for norm in (*norms, self.norm)]

    def forward(
        self,
        x: Tensor,
        positions: TokenPositions,
        cache: Sequence[KVCache] | None = None,
        modulations: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, list[KVCache]]:
        """Return tokens [B, S, width] after all layers, and their KV cache of every layer.

        Tokens attend to each other and, if given, to the prefix in ``cache``.
        """
        modulation: Sequence[Tensor | None] = modulations or [None] * (2 * len(self.layers) + 1)
        caches = []
        for i, layer in enumerate(self.layers):
            prefix = None if cache is None else cache[i]
            args = (x, positions, prefix, modulation[2 * i], modulation[2 * i + 1])
            if self.saves_memory and self.training and torch.is_grad_enabled():
                x, own_cache = checkpoint(layer, *args, use_reentrant=False)
            else:
                x, own_cache = layer(*args)
            caches.append(own_cache)
        return self.norm(x, modulation[-1])[0], caches

    def prefill(self, x: Tensor, positions: TokenPositions) -> list[KVCache]:
        """Return the KV cache of tokens without computing the output of the last layer."""
        caches = []
        for layer in self.layers[:-1]:
            if self.saves_memory and self.training and torch.is_grad_enabled():
                x, own_cache = checkpoint(layer, x, positions, use_reentrant=False)
            else:
                x, own_cache = layer(x, positions)
            caches.append(own_cache)
        last = self.layers[-1]
        normed, _ = last.input_layernorm(x, None)  # type: ignore[operator]
        caches.append(last.self_attn.keys_values(normed, positions))  # type: ignore[union-attr, operator]
        return caches


class GemmaLayer(nn.Module):
    """Pre-norm decoder layer: attention and a gated MLP, each with a residual connection."""

    def __init__(self, size: GemmaSize, *, adaptive: bool) -> None:
        super().__init__()
        norm = AdaptiveRmsNorm if adaptive else RmsNorm
        self.self_attn = GemmaAttention(size)
        self.mlp = GatedMlp(size.width, size.mlp_dim, _gelu_tanh)
        self.input_layernorm = norm(size.width)
        self.post_attention_layernorm = norm(size.width)

    @property
    def norms(self) -> tuple[nn.Module, nn.Module]:
        """The layer's norms, in the order of use."""
        return self.input_layernorm, self.post_attention_layernorm

    def forward(
        self,
        x: Tensor,
        positions: TokenPositions,
        cache: KVCache | None = None,
        pre_modulation: Tensor | None = None,
        post_modulation: Tensor | None = None,
    ) -> tuple[Tensor, KVCache]:
        """Return tokens [B, S, width] after the layer, and their KV cache."""
        normed, gate = self.input_layernorm(x, pre_modulation)
        attended, own_cache = self.self_attn(normed, positions, cache)
        x = x + (attended if gate is None else attended * gate)
        normed, gate = self.post_attention_layernorm(x, post_modulation)
        mlp_out = self.mlp(normed)
        return x + (mlp_out if gate is None else mlp_out * gate), own_cache


class GemmaAttention(GroupedQueryProjections):
    """Grouped-query attention with rotary position embeddings."""

    def __init__(self, size: GemmaSize) -> None:
        super().__init__(size.width, size.n_heads, size.n_kv_heads, size.head_dim)

    def keys_values(self, x: Tensor, positions: TokenPositions) -> KVCache:
        """Return the rotated keys and the values of tokens [B, S, width]."""
        return rotate(self.keys(x).transpose(1, 2), positions), self.values(x).transpose(1, 2)

    def forward(
        self, x: Tensor, positions: TokenPositions, cache: KVCache | None = None
    ) -> tuple[Tensor, KVCache]:
        """Attend to the KV cache and to the tokens themselves; also return their own KV cache."""
        own = self.keys_values(x, positions)
        k, v = own
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        q = rotate(self.queries(x).transpose(1, 2), positions)
        out: Tensor = self.o_proj(grouped_query_attention(q, k, v, positions.mask))
        return out, own


def rotate(x: Tensor, positions: TokenPositions) -> Tensor:
    """Apply rotary embeddings to queries or keys [B, H, S, D]."""
    return apply_rotary(x, positions.cos.to(x.dtype), positions.sin.to(x.dtype))


class RmsNorm(nn.Module):
    """RMSNorm in float32 that scales by 1 + weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, modulation: None = None) -> tuple[Tensor, None]:
        """Return normalised tokens; there is no gate."""
        weight = 1 + self.weight.float()
        return F.rms_norm(x.float(), weight.shape, weight, _EPS).to(x.dtype), None


class AdaptiveRmsNorm(nn.Module):
    """RMSNorm whose scale, shift and residual gate are projected from a condition (adaRMS)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, 3 * width)
        nn.init.zeros_(self.dense.weight)

    def forward(self, x: Tensor, modulation: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens modulated by ``modulation`` [B or 1, 1, 3 * width], and the gate."""
        scale, shift, gate = modulation.float().chunk(3, dim=-1)
        normed = F.rms_norm(x.float(), x.shape[-1:], None, _EPS)
        return torch.addcmul(shift, normed, 1 + scale).to(x.dtype), gate.to(x.dtype)
