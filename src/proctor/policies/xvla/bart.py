"""BART's encoder (Lewis et al., 2020), which Florence-2 applies to image and text tokens.

Attribute names are those of BART in transformers. Padding is not masked, as in X-VLA's training.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.blocks.encoder_layer import SelfAttention
from proctor.policies.xvla.florence_config import BartSizes

_OFFSET = 2
"""Offset of BART's position embeddings, for historical reasons."""


class BartModel(nn.Module):
    """Token embeddings and BART's encoder; its decoder is not used."""

    def __init__(self, config: BartSizes) -> None:
        super().__init__()
        self.scale = config.d_model**0.5 if config.scale_embedding else 1.0
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = BartEncoder(config)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embeddings [B, L, D] of tokens."""
        out: Tensor = self.shared(tokens)
        return out * self.scale


class BartEncoder(nn.Module):
    """Post-norm encoder layers with learned positions."""

    def __init__(self, config: BartSizes) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.embed_positions = nn.Embedding(
            config.max_position_embeddings + _OFFSET, config.d_model
        )
        self.layers = nn.ModuleList(BartLayer(config) for _ in range(config.encoder_layers))
        self.layernorm_embedding = nn.LayerNorm(config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Return encoded tokens [B, L, D]."""
        x = x + self.embed_positions.weight[_OFFSET : _OFFSET + x.shape[1]]
        x = F.dropout(self.layernorm_embedding(x), self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        return x


class BartLayer(nn.Module):
    """A post-norm encoder layer: self-attention and an MLP."""

    def __init__(self, config: BartSizes) -> None:
        super().__init__()
        self.dropout, self.activation_dropout = config.dropout, config.activation_dropout
        self.self_attn = SelfAttention(
            config.d_model, config.encoder_attention_heads, config.attention_dropout
        )
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, L, D]."""
        attended = F.dropout(self.self_attn(x), self.dropout, self.training)
        x = self.self_attn_layer_norm(x + attended)
        h = F.dropout(F.gelu(self.fc1(x)), self.activation_dropout, self.training)
        out: Tensor = self.final_layer_norm(x + F.dropout(self.fc2(h), self.dropout, self.training))
        return out
