"""ACT's transformer: DETR's encoder and decoder."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.act.config import ActConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class DetrLayer(nn.Module):
    """Base of encoder and decoder layers: self-attention, feed-forward block, residuals."""

    has_cross_attention = False
    """Whether the layer also attends to the encoder's tokens."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        width = config.dim_model
        self.self_attn = attention(config)
        if self.has_cross_attention:
            self.multihead_attn = attention(config)
        self.linear1 = nn.Linear(width, config.dim_feedforward)
        self.linear2 = nn.Linear(config.dim_feedforward, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = ACTIVATIONS[config.feedforward_activation]
        self.pre_norm = config.pre_norm

    def residual(self, x: Tensor, norm: nn.Module, block: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x + block(x), normalised before the block (``pre_norm``) or after the sum."""
        if self.pre_norm:
            kept: Tensor = self.dropout(block(norm(x)))
            return x + kept
        normed: Tensor = norm(x + self.dropout(block(x)))
        return normed

    def attend(self, x: Tensor, position: Tensor, ignore: Tensor | None = None) -> Tensor:
        """Self-attention; positions are added to queries and keys, not to values."""
        keys = x + position
        out: Tensor
        out, _ = self.self_attn(keys, keys, x, key_padding_mask=ignore, need_weights=False)
        return out

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply two linear layers to each token."""
        out: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return out


class DetrEncoderLayer(DetrLayer):
    """Self-attention among the encoder's tokens."""

    def forward(self, x: Tensor, position: Tensor, ignore: Tensor | None) -> Tensor:
        """Return tokens [B, n, D]."""
        x = self.residual(x, self.norm1, lambda h: self.attend(h, position, ignore))
        return self.residual(x, self.norm2, self.feed_forward)


class DetrDecoderLayer(DetrLayer):
    """Self-attention among queries, then cross-attention to the encoder's tokens (``memory``)."""

    has_cross_attention = True

    def __init__(self, config: ActConfig) -> None:
        super().__init__(config)
        self.norm3 = nn.LayerNorm(config.dim_model)

    def forward(self, x: Tensor, queries: Tensor, memory: Tensor, keys: Tensor) -> Tensor:
        """Return [B, T, D]; ``keys`` is the memory with its positions."""

        def cross_attend(h: Tensor) -> Tensor:
            out: Tensor = self.multihead_attn(h + queries, keys, memory, need_weights=False)[0]
            return out

        x = self.residual(x, self.norm1, lambda h: self.attend(h, queries))
        x = self.residual(x, self.norm2, cross_attend)
        return self.residual(x, self.norm3, self.feed_forward)


class DetrEncoder(nn.Module):
    """A stack of encoder layers, with a final LayerNorm if the layers are pre-norm."""

    def __init__(self, config: ActConfig, n_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DetrEncoderLayer(config) for _ in range(n_layers))
        self.norm = nn.LayerNorm(config.dim_model) if config.pre_norm else nn.Identity()

    def forward(self, x: Tensor, position: Tensor, ignore: Tensor | None = None) -> Tensor:
        """Return tokens [B, n, D]; ``ignore`` [B, n] masks keys."""
        for layer in self.layers:
            x = layer(x, position, ignore)
        normed: Tensor = self.norm(x)
        return normed


class DetrDecoder(nn.Module):
    """A stack of decoder layers; its input is zeros plus the query positions."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DetrDecoderLayer(config) for _ in range(config.n_decoder_layers)
        )
        self.norm = nn.LayerNorm(config.dim_model)

    def forward(self, memory: Tensor, position: Tensor, queries: Tensor) -> Tensor:
        """Return [B, T, D] for ``queries`` [1, T, D] over ``memory`` [B, n, D]."""
        x = torch.zeros_like(queries).expand(len(memory), -1, -1)
        keys = memory + position
        for layer in self.layers:
            x = layer(x, queries, memory, keys)
        normed: Tensor = self.norm(x)
        return normed


def attention(config: ActConfig) -> nn.MultiheadAttention:
    """Return a multi-head attention over [B, n, D]."""
    return nn.MultiheadAttention(
        config.dim_model, config.n_heads, dropout=config.dropout, batch_first=True
    )
