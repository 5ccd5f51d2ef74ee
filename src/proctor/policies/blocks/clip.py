"""CLIP's image and text encoders (Radford et al., 2021), under transformers' parameter names.

    images ─▶ patches + class token + positions ─▶ transformer ─▶ output of the class token
    tokens ─▶ embeddings + positions ─▶ causal transformer ─▶ norm ─▶ output of the last token

Our own, because transformers' version cannot be captured in a CUDA graph: it reads masks on the
host.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from proctor.policies.blocks.encoder_layer import Encoder
from proctor.policies.blocks.encoder_sizes import ClipTextSizes, ClipVisionSizes


class ClipVisionEmbeddings(nn.Module):
    """Patch embeddings with a class token before them, and position embeddings."""

    def __init__(self, sizes: ClipVisionSizes) -> None:
        super().__init__()
        width, patch = sizes.hidden_size, sizes.patch_size
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.patch_embedding = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.position_embedding = nn.Embedding((sizes.image_size // patch) ** 2 + 1, width)
        nn.init.normal_(self.class_embedding, std=width**-0.5)

    def forward(self, images: Tensor) -> Tensor:
        """Return [B, 1 + patches, D] for images [B, 3, H, W] of the configured size."""
        patches = self.patch_embedding(images).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(len(images), 1, -1)
        out: Tensor = torch.cat([first, patches], 1) + self.position_embedding.weight
        return out


class ClipVisionModel(nn.Module):
    """Images to the output of the class token.

    ``post_layernorm`` is in every weights file, but belongs to an output that is not used here.
    """

    def __init__(self, sizes: ClipVisionSizes) -> None:
        super().__init__()
        self.embeddings = ClipVisionEmbeddings(sizes)
        self.pre_layrnorm = nn.LayerNorm(sizes.hidden_size, eps=sizes.layer_norm_eps)
        self.encoder = Encoder(sizes)
        self.post_layernorm = nn.LayerNorm(sizes.hidden_size, eps=sizes.layer_norm_eps)

    def forward(self, images: Tensor) -> Tensor:
        """Return [B, D] for images [B, 3, H, W]."""
        rows: Tensor = self.encoder(self.pre_layrnorm(self.embeddings(images)))
        return rows[:, 0]


class ClipTextEmbeddings(nn.Module):
    """Token and position embeddings."""

    def __init__(self, sizes: ClipTextSizes) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.position_embedding = nn.Embedding(sizes.max_position_embeddings, sizes.hidden_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [B, N, D]."""
        positions = self.position_embedding.weight[: tokens.shape[1]]
        out: Tensor = self.token_embedding(tokens) + positions
        return out


class ClipTextModel(nn.Module):
    """Tokens to the output of the end-of-text token, which attends to all tokens before it."""

    def __init__(self, sizes: ClipTextSizes) -> None:
        super().__init__()
        self.end = None if sizes.ends_with_the_highest else sizes.eos_token_id
        self.embeddings = ClipTextEmbeddings(sizes)
        self.encoder = Encoder(sizes)
        self.final_layer_norm = nn.LayerNorm(sizes.hidden_size, eps=sizes.layer_norm_eps)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return [B, D] for tokens [B, N]; ``mask`` [B, N] is False at padding."""
        x = self.embeddings(tokens)
        rows = self.final_layer_norm(self.encoder(x, _attention_mask(mask, x.dtype)))
        # argmax finds the first end token, so padding may use the same token id.
        ends = (tokens if self.end is None else (tokens == self.end).int()).argmax(-1)
        out: Tensor = rows.gather(1, ends[:, None, None].expand(-1, 1, rows.shape[-1]))[:, 0]
        return out


def _attention_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive causal and padding mask [B, 1, N, N]."""
    size = mask.shape[1]
    earlier = torch.ones(size, size, dtype=torch.bool, device=mask.device).tril()
    visible = earlier & mask[:, None, :]
    lowest = torch.finfo(dtype).min  # not infinity: a row may be fully masked
    allowed = torch.zeros(visible.shape, dtype=dtype, device=mask.device)
    return allowed.masked_fill(~visible, lowest)[:, None]
