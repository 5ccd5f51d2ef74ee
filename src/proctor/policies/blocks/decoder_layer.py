"""Parts of Gemma's and Llama's decoder layers: grouped-query attention and a gated MLP.

Parameter names are transformers'. B is the batch, S the query tokens, K the key tokens, H the query
heads, h the fewer key-value heads, D a head's width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn


class GroupedQueryProjections(nn.Module):
    """Query, key, value and output projections; several query heads share a key-value head.

    ``kv_width`` is the width of the tokens that keys and values come from, where it differs.
    """

    def __init__(
        self, width: int, heads: int, kv_heads: int, head_dim: int, kv_width: int | None = None
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(width, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(kv_width or width, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(kv_width or width, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=False)

    def queries(self, x: Tensor) -> Tensor:
        """Return [B, S, H, D]."""
        return self._split(self.q_proj(x))

    def keys(self, x: Tensor) -> Tensor:
        """Return [B, S, h, D]."""
        return self._split(self.k_proj(x))

    def values(self, x: Tensor) -> Tensor:
        """Return [B, S, h, D]."""
        return self._split(self.v_proj(x))

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], -1, self.head_dim)


def grouped_query_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Return what queries [B, H, S, D] attend to among k and v [B, h, K, D], as [B, S, H * D].

    Query heads that share a key-value head become one head with more rows, so that no key is
    copied. ``mask`` [B, 1, H / h * S or 1, K] has rows in that order.
    """
    rows, heads, length, head_dim = q.shape
    q = q.reshape(rows, k.shape[1], -1, head_dim)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return attended.reshape(rows, heads, length, head_dim).transpose(1, 2).flatten(2)


class GatedMlp(nn.Module):
    """down(activation(gate) * up)."""

    def __init__(self, width: int, inner: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, S, width]."""
        out: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return out
