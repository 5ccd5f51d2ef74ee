"""The eyes of SmolVLM: a SigLIP encoder, and the connector that makes words of its patches.

    image [3, 512, 512] ─▶ 32 x 32 patches ─▶ 12 layers ─▶ 4 x 4 patches become one ─▶ 64 tokens

Names are those of the published weights. transformers has the same layers, but finds each patch's
place with the host waiting for the GPU, which no CUDA graph can hold.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.smolvla.vlm import VisionSizes, VlmSizes


class VisionModel(nn.Module):
    """Images [N, 3, H, W] from -1 to 1 become patches [N, patches, width]."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.embeddings = Patches(sizes)
        self.encoder = nn.Module()
        layers = [VisionLayer(sizes) for _ in range(sizes.num_hidden_layers)]
        self.encoder.layers = nn.ModuleList(layers)
        self.post_layernorm = nn.LayerNorm(sizes.hidden_size, eps=sizes.layer_norm_eps)

    def forward(self, images: Tensor) -> Tensor:
        """Look."""
        x: Tensor = self.embeddings(images)
        for layer in self.encoder.layers:  # type: ignore[union-attr]
            x = layer(x)
        seen: Tensor = self.post_layernorm(x)
        return seen


class Patches(nn.Module):
    """Cuts images into patches, row by row, and says of each where it was."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.side = sizes.image_size // sizes.patch_size
        patch, width = sizes.patch_size, sizes.hidden_size
        self.patch_embedding = nn.Conv2d(3, width, patch, stride=patch)
        self.position_embedding = nn.Embedding(self.side**2, width)

    def forward(self, images: Tensor) -> Tensor:
        """Return [N, patches, width]."""
        grid = self.patch_embedding(images)
        rows, columns = (self._buckets(n, images.device) for n in grid.shape[-2:])
        places = self.position_embedding((rows[:, None] * self.side + columns).flatten())
        patches: Tensor = grid.flatten(2).transpose(1, 2) + places
        return patches

    def _buckets(self, n: int, device: torch.device) -> Tensor:
        """Return which of the learnt places ``n`` patches lie at: others than ``side`` share."""
        bounds = torch.arange(1 / self.side, 1.0, 1 / self.side, device=device)
        at = (torch.arange(n, dtype=torch.float32, device=device) * (1.0 / n)).clamp(max=1 - 1e-6)
        return torch.bucketize(at, bounds, right=True)


class VisionLayer(nn.Module):
    """Attention and a feed-forward network, each normalised before and added."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        width = sizes.hidden_size
        self.self_attn = VisionAttention(width, sizes.num_attention_heads)
        self.layer_norm1 = nn.LayerNorm(width, eps=sizes.layer_norm_eps)
        self.mlp = VisionMlp(width, sizes.intermediate_size)
        self.layer_norm2 = nn.LayerNorm(width, eps=sizes.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """Return as many patches as came."""
        x = x + self.self_attn(self.layer_norm1(x))
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out


class VisionAttention(nn.Module):
    """Every patch sees every other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return out


class VisionMlp(nn.Module):
    """Two layers with a GELU, as tanh has it, between."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply them."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return out


class Connector(nn.Module):
    """Squares of ``scale_factor`` x ``scale_factor`` patches become one token of the text model."""

    def __init__(self, sizes: VlmSizes) -> None:
        super().__init__()
        self.factor = sizes.scale_factor
        inner = sizes.vision_config.hidden_size * self.factor**2
        self.modality_projection = nn.Module()
        self.modality_projection.proj = nn.Linear(inner, sizes.text_config.hidden_size, bias=False)

    def forward(self, patches: Tensor) -> Tensor:
        """Map [N, side * side, width] to [N, (side / factor)^2, text width]."""
        s, side = self.factor, round(patches.shape[1] ** 0.5)
        n = side // s
        grid = patches.reshape(len(patches), n, s, n, s, -1)  # rows, in a square, columns, in one
        squares = grid.transpose(2, 3).reshape(len(patches), n * n, -1)
        tokens: Tensor = self.modality_projection.proj(squares)  # type: ignore[operator]
        return tokens
