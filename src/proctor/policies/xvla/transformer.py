"""X-VLA's transformer (Zheng et al., 2025): denoises actions, with weights for each domain.

    [noisy action, state, time] ─▶ tokens ┐
    image and text features ─────▶ tokens ┴▶ + positions ─▶ layers ─▶ actions
    the domain's soft prompts ───▶ tokens ─────────────────────┘

A domain is a kind of robot with its own soft prompts, input and output layers. ``DenoisingContext``
holds the tokens that are the same in every denoising step; they are computed once per query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

_DROPOUT = 0.1
_MAX_PERIOD = 100


@dataclass(frozen=True)
class TransformerSizes:
    """Sizes of the transformer."""

    width: int
    context_width: int
    depth: int
    heads: int
    mlp_ratio: float
    domains: int
    action: int
    state: int
    time: int
    soft_prompts: int
    longest: int
    projections_by_domain: bool


@dataclass(frozen=True)
class DenoisingContext:
    """Inputs that all denoising steps of a query share."""

    domain: Tensor  # int64 [B]
    tokens: Tensor  # [B, L, D], with positions; soft prompts last


class SoftPromptedTransformer(nn.Module):
    """The transformer; attribute names are those of LeRobot's checkpoints."""

    def __init__(self, shape: TransformerSizes) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        self.blocks = nn.ModuleList(TransformerBlock(shape) for _ in range(shape.depth))
        self.vlm_proj, self.aux_visual_proj = (
            DomainLinear(shape.context_width, width, shape.domains)
            if shape.projections_by_domain
            else nn.Linear(shape.context_width, width)
            for _ in range(2)
        )
        self.pos_emb = nn.Parameter(torch.empty(1, shape.longest, width))
        self.norm = nn.LayerNorm(width)
        into = shape.action + shape.time + shape.state
        self.action_encoder = DomainLinear(into, width, shape.domains)
        self.action_decoder = DomainLinear(width, shape.action, shape.domains)
        if shape.soft_prompts:
            self.soft_prompt_hub = nn.Embedding(shape.domains, shape.soft_prompts * width)
            nn.init.normal_(self.soft_prompt_hub.weight, std=0.02)
        nn.init.normal_(self.pos_emb, std=0.02)
        self.apply(_init_linear)

    def context(
        self, domain: Tensor, encoded: Tensor, others: Tensor, n_actions: int
    ) -> DenoisingContext:
        """Return the context: tokens of encoded prompt, of other views, and of soft prompts."""
        parts = [
            projection(x, domain) if isinstance(projection, DomainLinear) else projection(x)
            for projection, x in ((self.vlm_proj, encoded), (self.aux_visual_proj, others))
        ]
        tokens = torch.cat(parts, dim=1)
        tokens = tokens + self.pos_emb[:, n_actions : n_actions + tokens.shape[1]]
        if self.shape.soft_prompts:
            prompts = self.soft_prompt_hub(domain).unflatten(1, (self.shape.soft_prompts, -1))
            tokens = torch.cat([tokens, prompts], dim=1)
        return DenoisingContext(domain, tokens)

    def forward(
        self, context: DenoisingContext, noisy: Tensor, state: Tensor, time: Tensor
    ) -> Tensor:
        """Predict clean actions [B, T, A] from noisy actions, a state [B, S] and times [B]."""
        n_actions = noisy.shape[1]
        beside = torch.cat([state, time_embedding(time, self.shape.time)], dim=-1)
        tokens = torch.cat([noisy, beside[:, None].expand(-1, n_actions, -1)], dim=-1)
        x = self.action_encoder(tokens, context.domain) + self.pos_emb[:, :n_actions]
        x = torch.cat([x, context.tokens], dim=1)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.action_decoder(self.norm(x[:, :n_actions]), context.domain)
        return out


class TransformerBlock(nn.Module):
    """Pre-norm transformer block: self-attention and MLP."""

    def __init__(self, shape: TransformerSizes) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width)
        self.norm2 = nn.LayerNorm(shape.width)
        self.attn = TransformerAttention(shape.width, shape.heads)
        self.mlp = TransformerMlp(shape.width, int(shape.width * shape.mlp_ratio))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, L, D]."""
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class TransformerAttention(nn.Module):
    """Bidirectional multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, L, D]."""
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        dropout = _DROPOUT if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        out: Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return out


class TransformerMlp(nn.Module):
    """Two linear layers with GELU (tanh form) between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        x = F.dropout(F.gelu(self.fc1(x), approximate="tanh"), _DROPOUT, self.training)
        return F.dropout(self.fc2(x), _DROPOUT, self.training)


class DomainLinear(nn.Module):
    """A linear layer per domain, stored as rows of embedding tables."""

    def __init__(self, into: int, out: int, domains: int) -> None:
        super().__init__()
        self.size = into, out
        self.fc = nn.Embedding(domains, into * out)
        self.bias = nn.Embedding(domains, out)
        nn.init.xavier_uniform_(self.fc.weight)
        nn.init.zeros_(self.bias.weight)

    def forward(self, x: Tensor, domain: Tensor) -> Tensor:
        """Map [B, L, in] to [B, L, out], each row with its domain's weights."""
        weight = self.fc(domain).unflatten(1, self.size)
        out: Tensor = torch.matmul(x, weight) + self.bias(domain)[:, None]
        return out


def time_embedding(time: Tensor, size: int) -> Tensor:
    """Return [cos, sin] of times [B] at periods up to 100, [B, size]."""
    half = size // 2
    numbers = torch.arange(half, dtype=time.dtype, device=time.device)
    angles = time[:, None] * torch.exp(-math.log(_MAX_PERIOD) * numbers / half)
    embedding = torch.cat([angles.cos(), angles.sin()], dim=-1)
    return F.pad(embedding, (0, size - 2 * half))


def _init_linear(module: nn.Module) -> None:
    """Initialise a linear layer."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
