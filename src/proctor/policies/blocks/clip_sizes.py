"""Sizes of a CLIP model (Radford et al., 2021), read from its config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from proctor.errors import UsageError
from proctor.policies.blocks.encoder_sizes import EncoderSizes, Pixels, Width
from proctor.policies.lerobot.location import read_config_json

_FIRST_END = 2
"""``eos_token_id`` in the configs of the first CLIP models, which is not their end token."""


@dataclass(frozen=True)
class ClipVisionSizes(EncoderSizes):
    """Sizes of the image encoder; the defaults are ViT-B/32's, as in transformers."""

    image_size: Pixels = 224
    patch_size: Pixels = 32

    def check(self, where: str) -> None:
        """Refuse invalid sizes; ``where`` names the file."""
        super().check(where)
        if self.patch_size > self.image_size:
            raise UsageError(
                f"{where}: patches of {self.patch_size} pixels are larger than images",
                code="checkpoint.invalid-config",
            )


@dataclass(frozen=True)
class ClipTextSizes(EncoderSizes):
    """Sizes of the text encoder; the defaults are those of ViT-B/16 and ViT-B/32."""

    hidden_size: Width = 512
    intermediate_size: Width = 2048
    num_attention_heads: Width = 8
    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 49408
    max_position_embeddings: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 77
    eos_token_id: int = _FIRST_END

    @property
    def ends_with_the_highest(self) -> bool:
        """Whether the end token is the highest token id, as in the first CLIP models."""
        return self.eos_token_id == _FIRST_END


@dataclass(frozen=True)
class ClipSizes:
    """The sizes of both encoders."""

    vision_config: ClipVisionSizes = ClipVisionSizes()
    text_config: ClipTextSizes = ClipTextSizes()


def _large(image_size: int) -> ClipSizes:
    vision = ClipVisionSizes(1024, 4096, 24, 16, image_size=image_size, patch_size=14)
    return ClipSizes(vision, ClipTextSizes(768, 3072, num_attention_heads=12))


_KNOWN = {
    "openai/clip-vit-base-patch16": ClipSizes(ClipVisionSizes(patch_size=16)),
    "openai/clip-vit-base-patch32": ClipSizes(),
    "openai/clip-vit-large-patch14": _large(224),
    "openai/clip-vit-large-patch14-336": _large(336),
}
"""Published models whose sizes need no download."""


def clip_sizes(name: str) -> ClipSizes:
    """Return the sizes of a CLIP model: a local folder or a Hub id."""
    if name in _KNOWN:
        return _KNOWN[name]
    stated, where = read_config_json(name), f"config.json of {name}"
    if stated.get("model_type") != "clip":
        raise UsageError(
            f"{where}: model_type is {stated.get('model_type')!r}, expected 'clip'",
            code="checkpoint.wrong-model",
        )
    try:
        sizes = msgspec.convert(stated, ClipSizes)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}", code="checkpoint.invalid-config") from None
    sizes.vision_config.check(where)
    sizes.text_config.check(where)
    return sizes
