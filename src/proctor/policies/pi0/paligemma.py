"""PaliGemma (Beyer et al., 2024): a Gemma that processes SigLIP's image tokens and text tokens.

    images ─▶ SigLIP ─▶ projection ─┐
    prompt ─▶ token embeddings ─────┴▶ Gemma

Attribute names are those of LeRobot's checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.blocks.siglip import SiglipEncoder
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.config import PiConfig
from proctor.policies.pi0.gemma import Gemma, TokenPositions, token_positions
from proctor.policies.pi0.sizes import GemmaSize
from proctor.policies.runtime.network import Network


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


_HALVED = re.compile(
    r"lm_head|embed_tokens|(language_model|gemma_expert\.model)\.layers\.\d+\.(self_attn|mlp)\."
)
"""Parameters that ``dtype`` applies to; LeRobot keeps the others in float32."""
_MODEL = "paligemma_with_expert.paligemma."
_HEAD, _TABLE = f"{_MODEL}lm_head.weight", f"{_MODEL}model.language_model.embed_tokens.weight"


class PrefixEncoder(Network):
    """Network that encodes images and prompt with PaliGemma."""

    takes_history = False
    skips_padding = True
    config: PiConfig
    paligemma_with_expert: nn.ModuleDict

    @property
    def vlm(self) -> PaliGemma:
        """The vision-language model."""
        model: PaliGemma = self.paligemma_with_expert["paligemma"]  # type: ignore[assignment]
        return model

    @property
    def vocabulary(self) -> int:
        """Size of the token embedding table."""
        return self.vlm.language.embed_tokens.num_embeddings

    def encode_images(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Return the image tokens of every camera in ``inputs``; missing cameras are skipped.

        LeRobot encodes a black image instead and masks it, which gives the same numbers.
        """
        cameras = [inputs[key] for key in self.config.cameras if key in inputs]
        return self.vlm.encode_images(cameras, self.config.side)

    def remap_state_dict(self, stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tie token embeddings and language-model head if a file holds only one of them."""
        for name, other in ((_TABLE, _HEAD), (_HEAD, _TABLE)):
            if name not in stored and other in stored:
                stored = {**stored, name: stored[other]}
        return stored

    def cast(self, dtype: torch.dtype | None) -> None:
        """Store the large matrices in ``dtype`` and everything else in float32."""
        for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
            wanted = dtype or tensor.dtype
            tensor.data = tensor.data.to(wanted if _HALVED.search(name) else torch.float32)

    @property
    def input_dtype(self) -> torch.dtype:
        """Always float32, the dtype of the vision encoder."""
        return torch.float32

    def training_notes(self, steps: int) -> tuple[str, ...]:
        """Return notes on relative actions: their statistics and their excluded joints."""
        config = self.config
        if not config.use_relative_actions:
            return ()
        known = config.action_feature_names is not None
        unnamed = (
            "the dataset does not name the action's dimensions, so relative_exclude_joints has no "
            "effect: all dimensions are relative"
        )
        return (
            "the policy learns actions relative to the state but normalises them by the dataset's "
            "statistics of actions: these must be computed from relative actions",
            *(() if known or not config.relative_exclude_joints else (unnamed,)),
        )

    def begin_training(self) -> None:
        """Cast to the config's dtype, and untie the token embeddings from the head."""
        self.cast({"float32": torch.float32, "bfloat16": torch.bfloat16}[self.config.dtype])
        table = self.vlm.language.embed_tokens.weight
        if table.data_ptr() == self.vlm.lm_head.weight.data_ptr():
            table.data = table.data.clone()
