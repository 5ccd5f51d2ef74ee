"""SigLIP (Zhai et al., 2023) without its pooling head: a picture becomes a token for each patch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.pi0.sizes import VisionSize

_EPS = 1e-6


class SigLip(nn.Module):
    """Pictures [B, 3, H, W] from -1 to 1 to tokens [B, patches, width], row by row."""

    def __init__(self, size: VisionSize, side: int) -> None:
        super().__init__()
        n_patches = (side // size.patch) ** 2
        self.embeddings = nn.ModuleDict(
            {
                "patch_embedding": nn.Conv2d(3, size.width, size.patch, stride=size.patch),
                "position_embedding": nn.Embedding(n_patches, size.width),
            }
        )
        layers = [Layer(size) for _ in range(size.depth)]
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        self.post_layernorm = nn.LayerNorm(size.width, eps=_EPS)

    @property
    def layers(self) -> list[nn.Module]:
        """Its layers, the first one first."""
        return list(self.encoder["layers"].children())

    def forward(self, images: Tensor) -> Tensor:
        """Look at pictures."""
        patches = self.embeddings["patch_embedding"](images)
        x = patches.flatten(2).transpose(1, 2) + self.embeddings["position_embedding"].weight
        for layer in self.layers:
            x = layer(x)
        seen: Tensor = self.post_layernorm(x)
        return seen


class Layer(nn.Module):
    """Attention among all patches and a perceptron, each normalised before and added after."""

    def __init__(self, size: VisionSize) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(size.width, eps=_EPS)
        self.self_attn = Attention(size)
        self.layer_norm2 = nn.LayerNorm(size.width, eps=_EPS)
        self.mlp = Perceptron(size)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, patches, width]."""
        x = x + self.self_attn(self.layer_norm1(x))
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out


class Attention(nn.Module):
    """Every patch looks at every other."""

    def __init__(self, size: VisionSize) -> None:
        super().__init__()
        self.n_heads = size.n_heads
        self.k_proj = nn.Linear(size.width, size.width)
        self.v_proj = nn.Linear(size.width, size.width)
        self.q_proj = nn.Linear(size.width, size.width)
        self.out_proj = nn.Linear(size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, patches, width]."""
        q, k, v = (
            project(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return out


class Perceptron(nn.Module):
    """Two layers, with the tanh form of GELU between them."""

    def __init__(self, size: VisionSize) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size.width, size.mlp_dim)
        self.fc2 = nn.Linear(size.mlp_dim, size.width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, patches, width]."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return out


def fitted(images: Tensor, height: int, width: int) -> Tensor:
    """Return pictures [B, 3, H, W] from 0 to 1 as SigLIP sees them: from -1 to 1, of one size.

    Their aspect is kept; what is left over is black, on both sides (an odd pixel to the right or
    below).
    """
    images = images.float()
    found_height, found_width = images.shape[-2:]
    if (found_height, found_width) != (height, width):
        ratio = max(found_width / width, found_height / height)
        size = int(found_height / ratio), int(found_width / ratio)
        images = F.interpolate(images, size, mode="bilinear", align_corners=False).clamp(0, 1)
        above, left = (height - size[0]) // 2, (width - size[1]) // 2
        below, right = height - size[0] - above, width - size[1] - left
        images = F.pad(images, (left, right, above, below))
    return torch.add(images * 2, -1)
