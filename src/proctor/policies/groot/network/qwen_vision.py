"""Qwen3-VL's vision encoder: patches, transformer layers, and mergers to tokens.

Patches come in the order of merge blocks: the 2 x 2 patches that become one token lie next to each
other. After some layers a merger of its own makes tokens that the language model adds to its own
early layers ("deepstack"). Parameter names are transformers'.

N is the number of images, P the patches of one image, D the width.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.blocks.layers import apply_rotary
from proctor.policies.groot.network.qwen_sizes import VisionSizes

_EPS, _ROPE_BASE = 1e-6, 10_000.0
_gelu_tanh = partial(F.gelu, approximate="tanh")


class VisionTokens(NamedTuple):
    """The tokens of images, [N, P / merge^2, text width] each."""

    merged: Tensor
    deepstack: list[Tensor]
    """Tokens for the first layers of the language model."""


class PatchEmbedding(nn.Module):
    """A linear layer on patches; its weight has the shape of a 3-D convolution."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        shape = sizes.in_channels, sizes.temporal_patch_size, sizes.patch_size, sizes.patch_size
        self.proj = nn.Module()
        self.proj.weight = nn.Parameter(torch.empty(sizes.hidden_size, *shape))
        self.proj.bias = nn.Parameter(torch.zeros(sizes.hidden_size))
        nn.init.normal_(self.proj.weight, std=0.02)

    def forward(self, patches: Tensor) -> Tensor:
        """Map patches [N, P, pixels] to [N, P, D]."""
        weight: Tensor = self.proj.weight  # type: ignore[assignment]
        bias: Tensor = self.proj.bias  # type: ignore[assignment]
        return F.linear(patches.to(weight.dtype), weight.flatten(1), bias)


class VisionAttention(nn.Module):
    """Self-attention among the patches of one image, with fused projections."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.heads = sizes.num_heads
        self.qkv = nn.Linear(sizes.hidden_size, 3 * sizes.hidden_size)
        self.proj = nn.Linear(sizes.hidden_size, sizes.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return [N, P, D]; ``cos`` and ``sin`` [P, head] are the patches' rotary embedding."""
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        q, k = (apply_rotary(part.float(), cos, sin).to(v.dtype) for part in (q, k))
        out: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return out


class VisionMlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(sizes.hidden_size, sizes.intermediate_size)
        self.linear_fc2 = nn.Linear(sizes.intermediate_size, sizes.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, P, D]."""
        out: Tensor = self.linear_fc2(_gelu_tanh(self.linear_fc1(x)))
        return out


class VisionLayer(nn.Module):
    """Pre-norm layer: attention and an MLP, each with a residual connection."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(sizes.hidden_size, eps=_EPS)
        self.norm2 = nn.LayerNorm(sizes.hidden_size, eps=_EPS)
        self.attn = VisionAttention(sizes)
        self.mlp = VisionMlp(sizes)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return [N, P, D]."""
        x = x + self.attn(self.norm1(x), cos, sin)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class PatchMerger(nn.Module):
    """Merge the patches of a block into one token of the language model's width."""

    def __init__(self, sizes: VisionSizes, *, norm_after_merge: bool) -> None:
        super().__init__()
        self.width = sizes.hidden_size * sizes.spatial_merge_size**2
        self.norm_after_merge = norm_after_merge
        self.norm = nn.LayerNorm(self.width if norm_after_merge else sizes.hidden_size, eps=_EPS)
        self.linear_fc1 = nn.Linear(self.width, self.width)
        self.linear_fc2 = nn.Linear(self.width, sizes.out_hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, P, D] to [N, P / merge^2, text width]."""
        if not self.norm_after_merge:
            x = self.norm(x)
        x = x.reshape(len(x), -1, self.width)
        if self.norm_after_merge:
            x = self.norm(x)
        out: Tensor = self.linear_fc2(F.gelu(self.linear_fc1(x)))
        return out


class QwenVision(nn.Module):
    """The vision encoder."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.patch_embed = PatchEmbedding(sizes)
        self.pos_embed = nn.Embedding(sizes.num_position_embeddings, sizes.hidden_size)
        self.blocks = nn.ModuleList(VisionLayer(sizes) for _ in range(sizes.depth))
        self.merger = PatchMerger(sizes, norm_after_merge=False)
        self.deepstack_merger_list = nn.ModuleList(
            PatchMerger(sizes, norm_after_merge=True) for _ in sizes.deepstack_visual_indexes
        )

    def patches(self, images: Tensor) -> Tensor:
        """Return the patches [N, P, pixels] of images [N, 3, H, W].

        The frame is repeated to fill a patch in time.
        """
        size, merge = self.sizes.patch_size, self.sizes.spatial_merge_size
        n, channels, height, width = images.shape
        rows, columns = height // (size * merge), width // (size * merge)
        cut = images.reshape(n, channels, rows, merge, size, columns, merge, size)
        cut = cut.permute(0, 2, 5, 3, 6, 1, 4, 7)  # [N, rows, columns, m, m, C, size, size]
        frames = self.sizes.temporal_patch_size
        cut = cut.unsqueeze(6).expand(*cut.shape[:6], frames, size, size)
        return cut.reshape(n, rows * columns * merge**2, -1)

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> VisionTokens:
        """Encode patches [N, P, pixels] of images with ``grid`` (rows, columns) patches."""
        x = self.patch_embed(patches)
        x = x + self._positions(grid).to(x.dtype)
        cos, sin = self._rotary(grid, x.device)
        where, deepstack = self.sizes.deepstack_visual_indexes, []
        for number, block in enumerate(self.blocks):
            x = block(x, cos, sin)
            if number in where:
                deepstack.append(self.deepstack_merger_list[where.index(number)](x))
        return VisionTokens(self.merger(x), deepstack)

    def _positions(self, grid: tuple[int, int]) -> Tensor:
        """Return the position embeddings [P, D], resized to ``grid``."""
        side = self.sizes.side
        table = self.pos_embed.weight.float().T.reshape(1, -1, side, side)
        resized = F.interpolate(table, size=grid, mode="bilinear", align_corners=True)[0]
        return self._in_blocks(resized.movedim(0, -1))

    def _rotary(self, grid: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [P, head]: a quarter each for row and column, twice."""
        head = self.sizes.hidden_size // self.sizes.num_heads
        exponents = torch.arange(0, head // 2, 2, device=device).float() / (head // 2)
        frequencies = _ROPE_BASE**-exponents
        rows, columns = (torch.arange(n, device=device).float() for n in grid)
        places = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1)
        angles = (self._in_blocks(places)[..., None] * frequencies).flatten(1)
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()

    def _in_blocks(self, values: Tensor) -> Tensor:
        """Reorder [rows, columns, ...] to merge blocks, [P, ...]."""
        m = self.sizes.spatial_merge_size
        rows, columns, *rest = values.shape
        blocks = values.reshape(rows // m, m, columns // m, m, *rest)
        return blocks.transpose(1, 2).reshape(rows * columns, *rest)
