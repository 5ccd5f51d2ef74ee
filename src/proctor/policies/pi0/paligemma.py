"""PaliGemma (Beyer et al., 2024): SigLIP's tokens of pictures, then words, read by a Gemma.

    pictures ─▶ SigLIP ─▶ projection ─┐
    words ────▶ table of tokens ──────┴▶ Gemma

Attribute names are those of LeRobot's checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from proctor.policies.pi0 import sizes
from proctor.policies.pi0.gemma import Gemma, Place, place
from proctor.policies.pi0.sizes import GemmaSize
from proctor.policies.pi0.vision import SigLip, fitted


class PaliGemma(nn.Module):
    """The whole of it, with a head that says the next token."""

    def __init__(self, variant: str, side: int) -> None:
        super().__init__()
        size, vision = sizes.GEMMAS[variant], sizes.VISION
        self.lm_head = nn.Linear(size.width, sizes.VOCABULARY, bias=False)
        tower = SigLip(vision, side)
        projector = nn.Linear(vision.width, size.width)
        self.model = nn.ModuleDict(
            {
                "vision_tower": nn.ModuleDict({"vision_model": tower}),
                "multi_modal_projector": nn.ModuleDict({"linear": projector}),
                "language_model": Gemma(size, sizes.VOCABULARY),
            }
        )

    @property
    def tower(self) -> SigLip:
        """What looks at pictures."""
        return cast("SigLip", cast("nn.ModuleDict", self.model["vision_tower"])["vision_model"])

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
    return nn.functional.pad(vectors, (0, width - vectors.shape[-1]))
