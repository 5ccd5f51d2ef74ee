"""Gemma's transformer (Gemma Team, 2024), as a language model and as an expert that looks at one.

An expert has its own weights, and in every layer attends to what the language model remembers
there: keys and values of its tokens. These do not depend on the expert, so they are computed once.

B is the batch, S the tokens, K all that is attended to, H the heads, D a head's width.
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
from proctor.policies.blocks.rotary import apply_rotary
from proctor.policies.pi0.sizes import GemmaSize

_EPS = 1e-6
_gelu_tanh = partial(F.gelu, approximate="tanh")
_LONGEST_WAVE = 10_000.0

Memory: TypeAlias = tuple[Tensor, Tensor]
"""Keys (rotated) and values of a layer, each [B, KV heads, K, D]."""


class Place(NamedTuple):
    """Where tokens stand, and what each may look at."""

    cos: Tensor
    """[B, 1, S, D], as is ``sin``: how queries and keys are turned."""
    sin: Tensor
    mask: Tensor
    """[B, 1, S or 1, K], True where a token (or all of them) may look."""


def place(positions: Tensor, mask: Tensor, size: GemmaSize) -> Place:
    """Return the place of tokens at ``positions`` [B, S] that look at ``mask``."""
    halves = torch.arange(0, size.head_dim, 2, device=positions.device) / size.head_dim
    angles = positions[..., None].float() * _LONGEST_WAVE**-halves
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    if mask.shape[2] > 1:  # heads that share keys are rows beside each other
        mask = mask.repeat(1, 1, size.n_heads // size.n_kv_heads, 1)
    return Place(angles.cos(), angles.sin(), mask)


class Gemma(nn.Module):
    """The layers and the norm after them; a language model has a table of its tokens, too."""

    def __init__(self, size: GemmaSize, vocabulary: int | None, *, adaptive: bool = False) -> None:
        super().__init__()
        self.size = size
        if vocabulary is not None:
            self.embed_tokens = nn.Embedding(vocabulary, size.width)
        self.layers = nn.ModuleList(Layer(size, adaptive=adaptive) for _ in range(size.depth))
        self.norm = AdaptiveNorm(size.width) if adaptive else Norm(size.width)
        self.saves_memory = False
        """Whether a training computes layers twice instead of keeping what they computed."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the tokens [B, S] as vectors [B, S, width], scaled by its root."""
        vectors: Tensor = self.embed_tokens(tokens)
        return vectors * torch.full((), math.sqrt(self.size.width)).to(vectors.dtype)

    def modulations(self, cond: Tensor) -> list[Tensor]:
        """Return what a condition [R, width] says to each adaptive norm, the last one last."""
        norms = [n for layer in self.layers for n in layer.norms]  # type: ignore[union-attr]
        return [norm.dense(cond)[:, None] for norm in (*norms, self.norm)]

    def forward(
        self,
        x: Tensor,
        where: Place,
        memory: Sequence[Memory] | None = None,
        modulations: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, list[Memory]]:
        """Return tokens [B, S, width] after all layers, and what each layer remembers of them.

        ``memory`` is what they look at beside themselves.
        """
        told: Sequence[Tensor | None] = modulations or [None] * (2 * len(self.layers) + 1)
        remembered = []
        for i, layer in enumerate(self.layers):
            given = (x, where, None if memory is None else memory[i], told[2 * i], told[2 * i + 1])
            if self.saves_memory and self.training and torch.is_grad_enabled():
                x, kept = checkpoint(layer, *given, use_reentrant=False)
            else:
                x, kept = layer(*given)
            remembered.append(kept)
        return self.norm(x, told[-1])[0], remembered

    def remember(self, x: Tensor, where: Place) -> list[Memory]:
        """Return what the layers remember of tokens; what the last makes of them is not needed."""
        remembered = []
        for layer in self.layers[:-1]:
            if self.saves_memory and self.training and torch.is_grad_enabled():
                x, kept = checkpoint(layer, x, where, use_reentrant=False)
            else:
                x, kept = layer(x, where)
            remembered.append(kept)
        last = self.layers[-1]
        normed, _ = last.input_layernorm(x, None)  # type: ignore[operator]
        remembered.append(last.self_attn.keys_values(normed, where))  # type: ignore[union-attr, operator]
        return remembered


class Layer(nn.Module):
    """Attention and a gated perceptron, each normalised before and added after."""

    def __init__(self, size: GemmaSize, *, adaptive: bool) -> None:
        super().__init__()
        norm = AdaptiveNorm if adaptive else Norm
        self.self_attn = Attention(size)
        self.mlp = GatedMlp(size.width, size.mlp_dim, _gelu_tanh)
        self.input_layernorm = norm(size.width)
        self.post_attention_layernorm = norm(size.width)

    @property
    def norms(self) -> tuple[nn.Module, nn.Module]:
        """Its norms, in their order."""
        return self.input_layernorm, self.post_attention_layernorm

    def forward(
        self,
        x: Tensor,
        where: Place,
        memory: Memory | None = None,
        before: Tensor | None = None,
        between: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """Return tokens [B, S, width], and what is remembered of them."""
        normed, gate = self.input_layernorm(x, before)
        attended, kept = self.self_attn(normed, where, memory)
        x = x + (attended if gate is None else attended * gate)
        normed, gate = self.post_attention_layernorm(x, between)
        thought = self.mlp(normed)
        return x + (thought if gate is None else thought * gate), kept


class Attention(GroupedQueryProjections):
    """Grouped-query attention with rotary position embeddings."""

    def __init__(self, size: GemmaSize) -> None:
        super().__init__(size.width, size.n_heads, size.n_kv_heads, size.head_dim)

    def keys_values(self, x: Tensor, where: Place) -> Memory:
        """Return the rotated keys and the values of tokens [B, S, width]."""
        return turned(self.keys(x).transpose(1, 2), where), self.values(x).transpose(1, 2)

    def forward(
        self, x: Tensor, where: Place, memory: Memory | None = None
    ) -> tuple[Tensor, Memory]:
        """Return what tokens attend to in the KV cache and themselves, and their own KV cache."""
        own = self.keys_values(x, where)
        k, v = own
        if memory is not None:
            k, v = torch.cat([memory[0], k], 2), torch.cat([memory[1], v], 2)
        q = turned(self.queries(x).transpose(1, 2), where)
        out: Tensor = self.o_proj(grouped_query_attention(q, k, v, where.mask))
        return out, own


def turned(x: Tensor, where: Place) -> Tensor:
    """Rotate [B, H, S, D] by its positions."""
    return apply_rotary(x, where.cos.to(x.dtype), where.sin.to(x.dtype))


class Norm(nn.Module):
    """Root-mean-square normalisation in float32; its weight is what is added to 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, told: None = None) -> tuple[Tensor, None]:
        """Return tokens normalised; nothing gates what is made of them."""
        weight = 1 + self.weight.float()
        return F.rms_norm(x.float(), weight.shape, weight, _EPS).to(x.dtype), None


class AdaptiveNorm(nn.Module):
    """Root-mean-square normalisation that a condition scales, shifts, and gates the branch of."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, 3 * width)
        nn.init.zeros_(self.dense.weight)

    def forward(self, x: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens [B, S, width] as ``told`` [B or 1, 1, 3 * width] has them, and a gate."""
        scale, shift, gate = told.float().chunk(3, dim=-1)
        normed = F.rms_norm(x.float(), x.shape[-1:], None, _EPS)
        return torch.addcmul(shift, normed, 1 + scale).to(x.dtype), gate.to(x.dtype)
