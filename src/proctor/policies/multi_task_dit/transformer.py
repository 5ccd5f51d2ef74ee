"""A diffusion transformer (Peebles and Xie, 2023) with adaptive LayerNorm conditioning.

    time ─▶ MLP ─┐
    condition ───┴▶ SiLU, linear ─▶ shift, scale, gate of each block's attention and MLP
    noisy actions ─▶ linear ─▶ blocks ─▶ linear ─▶ noise, clean actions or velocity

The condition's part of the modulation is the same in every denoising step and computed once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.blocks.layers import apply_rotary, sinusoidal_embedding
from proctor.policies.multi_task_dit.config import DitConfig


class RotaryAttention(nn.Module):
    """Self-attention with rotary position embeddings (Su et al., 2021)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        width, self.heads, self.dropout = config.hidden_dim, config.num_heads, config.dropout
        self.qkv_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        size = width // config.num_heads
        rates = 1.0 / config.rope_base ** (torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(config.horizon).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, D]."""
        qkv = self.qkv_proj(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        dropout = self.dropout if self.training else 0.0
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        attended = F.scaled_dot_product_attention(
            apply_rotary(q, cos, sin), apply_rotary(k, cos, sin), v, dropout_p=dropout
        )
        out: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return out


class DitBlock(nn.Module):
    """Self-attention and MLP, each with adaptive shift, scale and gate."""

    def __init__(self, config: DitConfig, condition: int) -> None:
        super().__init__()
        width = config.hidden_dim
        if config.use_rope:
            self.attn: RotaryAttention | None = RotaryAttention(config)
        else:
            self.attn = None
            self.multihead_attn = nn.MultiheadAttention(
                width, config.num_heads, config.dropout, batch_first=True
            )
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(condition, 6 * width))
        nn.init.zeros_(self._modulation.weight)  # a new block is the identity
        nn.init.zeros_(self._modulation.bias)

    @property
    def _modulation(self) -> Any:
        """The linear layer, which may be quantised to 8 bits."""
        return self.adaLN_modulation[1]

    def condition_modulation(self, condition: Tensor) -> Tensor:
        """Return the condition's part of the modulation, [B, 6 D], for conditions [B, C]."""
        weight: Tensor = self._modulation.weight[:, -condition.shape[1] :]
        return F.linear(F.silu(condition), weight, self._modulation.bias)

    def forward(self, x: Tensor, time: Tensor, fixed: Tensor) -> Tensor:
        """Return [B, T, D] at ``time`` [B, E]; ``fixed`` is the condition's modulation."""
        weight: Tensor = self._modulation.weight[:, : time.shape[1]]
        modulation = fixed + F.linear(F.silu(time), weight)
        shift, scale, gate, shift2, scale2, gate2 = modulation[:, None].chunk(6, -1)
        x = x + gate * self._attend(_normed(x) * (1 + scale) + shift)
        out: Tensor = x + gate2 * self.mlp(_normed(x) * (1 + scale2) + shift2)
        return out

    def _attend(self, x: Tensor) -> Tensor:
        attended: Tensor = (
            self.multihead_attn(x, x, x, need_weights=False)[0]
            if self.attn is None
            else self.attn(x)
        )
        return attended


def _normed(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


class NoisePredictor(nn.Module):
    """The denoiser; attribute names are those of LeRobot's checkpoints."""

    def __init__(self, config: DitConfig, condition: int) -> None:
        super().__init__()
        width, self.time_size = config.hidden_dim, config.timestep_embed_dim
        size = self.time_size
        self.time_mlp = nn.Sequential(
            nn.Identity(),  # in place of LeRobot's time embedding, which has no weights
            nn.Linear(size, 2 * size),
            nn.GELU(),
            nn.Linear(2 * size, size),
            nn.GELU(),
        )
        self.input_proj = nn.Linear(config.action_dim, width)
        self.pos_embedding: nn.Parameter | None = None
        if config.use_positional_encoding:
            self.pos_embedding = nn.Parameter(torch.empty(1, config.horizon, width))
            nn.init.normal_(self.pos_embedding, std=0.02)
        self.transformer_blocks = nn.ModuleList(
            DitBlock(config, size + condition) for _ in range(config.num_layers)
        )
        self.output_proj = nn.Linear(width, config.action_dim)

    def condition_modulation(self, condition: Tensor) -> list[Tensor]:
        """Return the condition's part of the modulation of every block."""
        blocks = cast("Iterable[DitBlock]", self.transformer_blocks)
        return [block.condition_modulation(condition) for block in blocks]

    def forward(self, x: Tensor, time: Tensor, modulation: list[Tensor]) -> Tensor:
        """Return the prediction for noisy actions [B, T, A] at ``time`` [B]."""
        embedded = self.time_mlp(sinusoidal_embedding(time, self.time_size).to(x.dtype))
        hidden = self.input_proj(x)
        if self.pos_embedding is not None:
            hidden = hidden + self.pos_embedding[:, : x.shape[1]]
        for block, fixed in zip(self.transformer_blocks, modulation, strict=True):
            hidden = block(hidden, embedded, fixed)
        out: Tensor = self.output_proj(hidden)
        return out
