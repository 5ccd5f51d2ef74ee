"""SigLIP's image encoder (Zhai et al., 2023) without its pooling head: one token per patch.

    image [3, 512, 512] ─▶ 32 x 32 patches + positions ─▶ 12 layers ─▶ norm ─▶ 1024 tokens

Parameter names are those of the published weights. transformers' version cannot be captured in a
CUDA graph: the host waits for the GPU to find each patch's position.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from proctor.policies.blocks.encoder_layer import Encoder
from proctor.policies.blocks.encoder_sizes import SiglipSizes


class PatchEmbeddings(nn.Module):
    """Patches as vectors, row by row, each with its learned position embedding."""

    def __init__(self, sizes: SiglipSizes) -> None:
        super().__init__()
        self.side = sizes.image_size // sizes.patch_size
        width, patch = sizes.hidden_size, sizes.patch_size
        self.patch_embedding = nn.Conv2d(3, width, patch, stride=patch)
        self.position_embedding = nn.Embedding(self.side**2, width)

    def forward(self, images: Tensor) -> Tensor:
        """Return [B, patches, width]."""
        grid: Tensor = self.patch_embedding(images)
        return grid.flatten(2).transpose(1, 2) + self.positions(*grid.shape[-2:])

    def positions(self, rows: int, columns: int) -> Tensor:
        """Return the position embeddings of a grid of patches: one for each, in order."""
        return self.position_embedding.weight


class ScaledPatchEmbeddings(PatchEmbeddings):
    """Patch embeddings for images of any size: their patches share the learned positions."""

    def positions(self, rows: int, columns: int) -> Tensor:
        """Return the learned position at the same fraction of the image's height and width."""
        row, column = self._nearest(rows), self._nearest(columns)
        found: Tensor = self.position_embedding((row[:, None] * self.side + column).flatten())
        return found

    def _nearest(self, n: int) -> Tensor:
        device = self.position_embedding.weight.device
        bounds = torch.arange(1 / self.side, 1.0, 1 / self.side, device=device)
        at = (torch.arange(n, dtype=torch.float32, device=device) * (1.0 / n)).clamp(max=1 - 1e-6)
        return torch.bucketize(at, bounds, right=True)


class SiglipEncoder(nn.Module):
    """Images [B, 3, H, W] from -1 to 1 to tokens [B, patches, width], row by row."""

    def __init__(
        self,
        sizes: SiglipSizes,
        embeddings: type[PatchEmbeddings] = PatchEmbeddings,
        *,
        norms_first: bool = False,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings(sizes)
        self.encoder = Encoder(sizes, norms_first=norms_first)
        self.post_layernorm = nn.LayerNorm(sizes.hidden_size, eps=sizes.layer_norm_eps)

    @property
    def layers(self) -> list[nn.Module]:
        """Its layers, the first one first."""
        return list(self.encoder.layers)

    def forward(self, images: Tensor) -> Tensor:
        """Return one token per patch."""
        tokens: Tensor = self.post_layernorm(self.encoder(self.embeddings(images)))
        return tokens
