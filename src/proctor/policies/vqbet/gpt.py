"""The transformer of VQ-BeT: a GPT (Radford et al., 2019) over vectors instead of words."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.vqbet.config import VqBetConfig


class Gpt(nn.Module):
    """Tokens [B, N, gpt_input_dim] to features [B, N, gpt_output_dim], each of what came before.

    Attribute names are those of LeRobot's checkpoints.
    """

    def __init__(self, config: VqBetConfig) -> None:
        super().__init__()
        self.transformer = Transformer(config)
        self.lm_head = nn.Linear(config.gpt_hidden_dim, config.gpt_output_dim, bias=False)
        self._init_weights(config.gpt_n_layer)

    def _init_weights(self, n_layers: int) -> None:
        """As GPT-2: what is added to the residual stream begins smaller the more layers add."""
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
        """Return what weight decay is for (matrices of linear layers), and the rest.

        By name, as LeRobot sorts them: an optimiser's state knows parameters by their number.
        """
        named = dict(self.named_parameters())
        embedding = "transformer.wpe.weight"
        decayed = {name for name, p in named.items() if p.dim() > 1 and name != embedding}
        return (
            [named[name] for name in sorted(decayed)],
            [named[name] for name in sorted(named.keys() - decayed)],
        )


class Transformer(nn.Module):
    """Blocks between an embedding of tokens with their places and a last normalisation."""

    def __init__(self, config: VqBetConfig) -> None:
        super().__init__()
        width = config.gpt_hidden_dim
        self.wte = nn.Linear(config.gpt_input_dim, width)
        self.wpe = nn.Embedding(config.gpt_block_size, width)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.gpt_n_layer))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [B, N, gpt_input_dim] to [B, N, gpt_hidden_dim]."""
        x = self.drop(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]])
        for block in self.h:
            x = block(x)
        normalised: Tensor = self.ln_f(x)
        return normalised


class Block(nn.Module):
    """Attention, then a feed-forward layer, each added to what it was given."""

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
        """Return ``x`` [B, N, D] after this block."""
        x = x + self.attn(self.ln_1(x))
        after: Tensor = x + self.mlp(self.ln_2(x))
        return after


class CausalAttention(nn.Module):
    """Every token attends to itself and to those before it."""

    bias: Tensor

    def __init__(self, config: VqBetConfig) -> None:
        super().__init__()
        self.n_heads, self.dropout = config.gpt_n_head, config.dropout
        self.c_attn = nn.Linear(config.gpt_hidden_dim, 3 * config.gpt_hidden_dim)
        self.c_proj = nn.Linear(config.gpt_hidden_dim, config.gpt_hidden_dim)
        self.resid_dropout = nn.Dropout(config.dropout)
        # Who may attend to whom: stands in LeRobot's files, and torch's own kernel knows it.
        n = config.gpt_block_size
        self.register_buffer("bias", torch.ones(n, n).tril()[None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Return what each token [B, N, D] gathers."""
        q, k, v = (
            each.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for each in self.c_attn(x).chunk(3, dim=-1)
        )
        dropped = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
        gathered: Tensor = self.resid_dropout(self.c_proj(found.transpose(1, 2).flatten(2)))
        return gathered
