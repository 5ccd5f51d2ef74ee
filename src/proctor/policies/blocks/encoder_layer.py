"""Pre-norm transformer encoder layers of CLIP and SigLIP, under transformers' parameter names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.blocks.encoder_sizes import EncoderSizes


def quick_gelu(x: Tensor) -> Tensor:
    """Approximate GELU by a sigmoid, as the first CLIP models do."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class SelfAttention(nn.Module):
    """Multi-head self-attention with separate query, key and value projections."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return [B, N, D]; ``mask`` [B, 1, N, N] is added to the attention scores."""
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        out: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[sizes.hidden_act]
        self.fc1 = nn.Linear(sizes.hidden_size, sizes.intermediate_size)
        self.fc2 = nn.Linear(sizes.intermediate_size, sizes.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, N, D]."""
        out: Tensor = self.fc2(self.activation(self.fc1(x)))
        return out


class EncoderLayer(nn.Module):
    """Self-attention and an MLP, each with a LayerNorm before it and a residual connection.

    ``norms_first`` registers each norm before its block, as some models in transformers do. The
    numbers are the same, but files with optimiser state count parameters in this order.
    """

    def __init__(self, sizes: EncoderSizes, *, norms_first: bool = False) -> None:
        super().__init__()
        attention = SelfAttention(sizes.hidden_size, sizes.num_attention_heads)
        mlp = Mlp(sizes)
        norm1, norm2 = (nn.LayerNorm(sizes.hidden_size, eps=sizes.layer_norm_eps) for _ in range(2))
        if norms_first:
            self.layer_norm1, self.self_attn = norm1, attention
            self.layer_norm2, self.mlp = norm2, mlp
        else:
            self.self_attn, self.layer_norm1 = attention, norm1
            self.mlp, self.layer_norm2 = mlp, norm2

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return [B, N, D]."""
        x = x + self.self_attn(self.layer_norm1(x), mask)
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out


class Encoder(nn.Module):
    """A stack of encoder layers."""

    def __init__(self, sizes: EncoderSizes, *, norms_first: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(sizes, norms_first=norms_first) for _ in range(sizes.num_hidden_layers)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return [B, N, D]."""
        for layer in self.layers:
            x = layer(x, mask)
        return x
