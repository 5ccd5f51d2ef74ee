"""VQ-BeT's transformer: a GPT (Radford et al., 2019) whose tokens are vectors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.vqbet.config import VqBetConfig


class Gpt(nn.Module):
    """Causal transformer: tokens [B, N, gpt_input_dim] to features [B, N, gpt_output_dim].

    Attribute names are those of LeRobot's checkpoints.
    """

    def __init__(self, config: VqBetConfig) -> None:
        super().__init__()
        self.transformer = GptTransformer(config)
        self.lm_head = nn.Linear(config.gpt_hidden_dim, config.gpt_output_dim, bias=False)
        self._init_weights(config.gpt_n_layer)

    def _init_weights(self, n_layers: int) -> None:
        """Initialise as GPT-2: residual projections are scaled down with the number of layers."""
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * n_layers))
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the features of all tokens."""
        features: Tensor = self.lm_head(self.transformer(tokens))
        return features

    def by_decay(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the parameters with weight decay (linear weights), and those without.

        Sorted by name, as in LeRobot: saved optimiser state refers to parameters by their index.
        """
        named = dict(self.named_parameters())
        embedding = "transformer.wpe.weight"
        decayed = {name for name, p in named.items() if p.dim() > 1 and name != embedding}
        return (
            [named[name] for name in sorted(decayed)],
            [named[name] for name in sorted(named.keys() - decayed)],
        )


class GptTransformer(nn.Module):
    """Token and position embeddings, transformer blocks, and a final LayerNorm."""

    def __init__(self, config: VqBetConfig) -> None:
        super().__init__()
        width = config.gpt_hidden_dim
        self.wte = nn.Linear(config.gpt_input_dim, width)
        self.wpe = nn.Embedding(config.gpt_block_size, width)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(GptBlock(config) for _ in range(config.gpt_n_layer))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [B, N, gpt_input_dim] to [B, N, gpt_hidden_dim]."""
        x = self.drop(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]])
        for block in self.h:
            x = block(x)
        normalised: Tensor = self.ln_f(x)
        return normalised


class GptBlock(nn.Module):
    """Pre-norm attention and feed-forward layer, each with a residual connection."""

    def __init__(self, config: VqBetConfig) -> None:
        super().__init__()
        width = config.gpt_hidden_dim
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalAttention(config)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, N, D]."""
        x = x + self.attn(self.ln_1(x))
        after: Tensor = x + self.mlp(self.ln_2(x))
        return after


class CausalAttention(nn.Module):
    """Causal multi-head self-attention."""

    bias: Tensor

    def __init__(self, config: VqBetConfig) -> None:
        super().__init__()
        self.n_heads, self.dropout = config.gpt_n_head, config.dropout
        self.c_attn = nn.Linear(config.gpt_hidden_dim, 3 * config.gpt_hidden_dim)
        self.c_proj = nn.Linear(config.gpt_hidden_dim, config.gpt_hidden_dim)
        self.resid_dropout = nn.Dropout(config.dropout)
        # The causal mask in LeRobot's checkpoints; torch's kernel does not need it.
        n = config.gpt_block_size
        self.register_buffer("bias", torch.ones(n, n).tril()[None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, N, D]."""
        q, k, v = (
            each.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for each in self.c_attn(x).chunk(3, dim=-1)
        )
        dropped = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
        gathered: Tensor = self.resid_dropout(self.c_proj(found.transpose(1, 2).flatten(2)))
        return gathered
