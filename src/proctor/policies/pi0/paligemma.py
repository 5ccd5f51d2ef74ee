"""PaliGemma (Beyer et al., 2024): a Gemma that processes SigLIP's image tokens and text tokens.

    images ─▶ SigLIP ─▶ projection ─┐
    prompt ─▶ token embeddings ─────┴▶ Gemma

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
from proctor.policies.pi0.gemma import Gemma, TokenPositions, token_positions
from proctor.policies.pi0.sizes import GemmaSize


class PaliGemma(nn.Module):
    """The vision-language model with its language-model head."""

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
        """The vision encoder."""
        return cast(
            "SiglipEncoder", cast("nn.ModuleDict", self.model["vision_tower"])["vision_model"]
        )

    @property
    def language(self) -> Gemma:
        """The language model."""
        return cast("Gemma", self.model["language_model"])

    def encode_images(self, images: Sequence[Tensor], side: tuple[int, int]) -> list[Tensor]:
        """Return image tokens [B, patches, width] of each camera; all are encoded in one batch."""
        projector = cast("nn.ModuleDict", self.model["multi_modal_projector"])["linear"]
        resized = torch.cat([resize_with_padding(each, *side) for each in images])
        return list(projector(self.tower(resized)).chunk(len(images)))

    def embed(
        self, images: list[Tensor], tokens: Tensor, prompt_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return embeddings [B, S, width] of image and text tokens, and their padding mask [B, S].

        ``prompt_mask`` [B, prompt] is False at padding of the prompt.
        """
        text = self.language.embed(tokens)
        x = torch.cat([*(each.to(text.dtype) for each in images), text], dim=1)
        n_image_tokens = x.shape[1] - text.shape[1]
        valid = torch.cat(
            [prompt_mask.new_ones(len(prompt_mask), n_image_tokens), prompt_mask], dim=1
        )
        return x, valid


def bidirectional_positions(valid: Tensor, size: GemmaSize) -> TokenPositions:
    """Return positions and mask for bidirectional attention; ``valid`` [B, S] masks padding.

    Padding tokens attend too: their output is not used, and a fully masked softmax gives NaN.
    """
    return token_positions(valid.cumsum(1) - 1, valid[:, None, None], size)


def pad_last_dim(vectors: Tensor, width: int) -> Tensor:
    """Zero-pad [..., n] to [..., width]."""
    return F.pad(vectors, (0, width - vectors.shape[-1]))


def resize_with_padding(images: Tensor, height: int, width: int) -> Tensor:
    """Resize images [B, 3, H, W] with values in [0, 1] for SigLIP, which takes [-1, 1].

    The aspect ratio is kept; black padding is centred (an odd pixel goes to the right or below).
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
