"""PaliGemma (Beyer et al., 2024): SigLIP's tokens of pictures, then words, read by a Gemma.

    pictures ─▶ SigLIP ─▶ projection ─┐
    words ────▶ table of tokens ──────┴▶ Gemma

Attribute names are those of LeRobot's checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.blocks.siglip import SiglipEncoder
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.gemma import Gemma, Place, place
from proctor.policies.pi0.sizes import GemmaSize


class PaliGemma(nn.Module):
    """The whole of it, with a head that says the next token."""

    def __init__(self, variant: str, side: int) -> None:
        super().__init__()
        size, vision = sizes.GEMMAS[variant], replace(sizes.VISION, image_size=side)
        self.lm_head = nn.Linear(size.width, sizes.VOCABULARY, bias=False)
        tower = SiglipEncoder(vision, norms_first=True)
        projector = nn.Linear(vision.hidden_size, size.width)
        self.model = nn.ModuleDict(
            {
                "vision_tower": nn.ModuleDict({"vision_model": tower}),
                "multi_modal_projector": nn.ModuleDict({"linear": projector}),
                "language_model": Gemma(size, sizes.VOCABULARY),
            }
        )

    @property
    def tower(self) -> SiglipEncoder:
        """What looks at pictures."""
        return cast(
            "SiglipEncoder", cast("nn.ModuleDict", self.model["vision_tower"])["vision_model"]
        )

    @property
    def language(self) -> Gemma:
        """What reads."""
        return cast("Gemma", self.model["language_model"])

    def look(self, images: Sequence[Tensor], side: tuple[int, int]) -> list[Tensor]:
        """Return the tokens [B, patches, width] of each camera's pictures, all seen at once."""
        projector = cast("nn.ModuleDict", self.model["multi_modal_projector"])["linear"]
        pictures = torch.cat([fitted(each, *side) for each in images])
        return list(projector(self.tower(pictures)).chunk(len(images)))

    def embed(self, images: list[Tensor], words: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens [B, S, width], and which of them are there [B, S].

        ``heard`` [B, words] says which words are.
        """
        told = self.language.embed(words)
        x = torch.cat([*(each.to(told.dtype) for each in images), told], dim=1)
        n_seen = x.shape[1] - told.shape[1]
        there = torch.cat([heard.new_ones(len(heard), n_seen), heard], dim=1)
        return x, there


def among_all(there: Tensor, size: GemmaSize) -> Place:
    """Return the place of tokens that all look at all that are there [B, S], and at no padding.

    Padding looks too: what it finds is not used, and a row that sees nothing has no softmax.
    """
    return place(there.cumsum(1) - 1, there[:, None, None], size)


def padded(vectors: Tensor, width: int) -> Tensor:
    """Return [..., n] filled up with zeros to [..., width]."""
    return F.pad(vectors, (0, width - vectors.shape[-1]))


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
