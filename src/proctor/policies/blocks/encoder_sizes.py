"""Sizes of image and text encoders, with the field names of transformers' config.json.

Those of CLIP (Radford et al., 2021) and ResNet10 are read from a model's own config.json. No torch
here: configs are checked before anything is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar

import msgspec

from proctor.errors import UsageError
from proctor.policies.lerobot.checkpoint.location import read_config_json
from proctor.policies.lerobot.processors.limits import MOST_LAYERS, MOST_PIXELS, MOST_WIDTH

Width: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST_WIDTH)]
Layers: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST_LAYERS)]
Pixels: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST_PIXELS)]


class CheckedSizes(Protocol):
    """Sizes that are checked together."""

    def check(self, where: str) -> None:
        """Refuse sizes that do not make a network; ``where`` names the file."""


SizesT = TypeVar("SizesT", bound=CheckedSizes)


def decode_checked(
    stated: Mapping[str, Any],
    kind: type[SizesT],
    where: str,
    code: str = "policy.wrong-backbone",
) -> SizesT:
    """Decode and check sizes from a config.json; ``where`` names it in errors."""
    try:
        sizes = msgspec.convert(stated, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}", code=code) from None
    sizes.check(where)
    return sizes


def refuse_faults(where: str, faults: Mapping[str, object]) -> None:
    """Refuse sizes with one of the ``faults`` that are true."""
    for fault, found in faults.items():
        if found:
            raise UsageError(f"{where}: {fault}", code="policy.wrong-backbone")


@dataclass(frozen=True)
class EncoderSizes:
    """Sizes that the image and text encoders share; the defaults are CLIP's."""

    hidden_size: Width = 768
    intermediate_size: Width = 3072
    num_hidden_layers: Layers = 12
    num_attention_heads: Width = 12
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5

    def check(self, where: str) -> None:
        """Refuse invalid sizes; ``where`` names the file."""
        if self.hidden_size % self.num_attention_heads:
            raise UsageError(
                f"{where}: hidden_size is not a multiple of num_attention_heads",
                code="checkpoint.invalid-config",
            )
        if self.hidden_act not in self.activations:
            raise UsageError(
                f"{where}: hidden_act {self.hidden_act!r} is not supported",
                code="checkpoint.invalid-config",
            )

    @property
    def activations(self) -> tuple[str, ...]:
        """The activation functions that published models of this kind use."""
        return ("quick_gelu", "gelu")


@dataclass(frozen=True)
class SiglipSizes(EncoderSizes):
    """Sizes of a SigLIP image encoder; the defaults are SmolVLM2's."""

    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    image_size: Pixels = 512
    patch_size: Pixels = 16

    @property
    def activations(self) -> tuple[str, ...]:
        """GELU in its tanh form."""
        return ("gelu_pytorch_tanh",)


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

    def check(self, where: str) -> None:
        """Refuse invalid sizes; ``where`` names the file."""
        self.vision_config.check(where)
        self.text_config.check(where)


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
    return decode_checked(stated, ClipSizes, where, "checkpoint.invalid-config")


PUBLISHED = ("lerobot/resnet10", "helper2424/resnet10")
"""Hub ids of the encoder that HIL-SERL uses; both hold the same weights."""
MODEL_TYPE = "resnet10"
GROUPS = 4
"""Groups of every group norm."""
N_STAGES = 4


@dataclass(frozen=True)
class ResNet10Sizes:
    """Channels of a ResNet10, with the field names of its config.json."""

    embedding_size: Width = 64
    hidden_sizes: Annotated[list[Width], msgspec.Meta(min_length=N_STAGES, max_length=N_STAGES)] = (
        field(default_factory=lambda: [64, 128, 256, 512])
    )

    @property
    def out_channels(self) -> int:
        """Channels of the feature map."""
        return self.hidden_sizes[-1]

    def feature_map(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the feature map of an image: five halvings, rounded up."""
        return -(-height // 32), -(-width // 32)


def resnet10_sizes(name: str) -> ResNet10Sizes:
    """Return the sizes of the encoder called ``name``: a published one, or a local folder's."""
    if name in PUBLISHED:
        return ResNet10Sizes()
    raw = read_config_json(name)
    sizes = _decoded(raw, name)
    for channels in (sizes.embedding_size, *sizes.hidden_sizes):
        if channels % GROUPS:
            raise UsageError(
                f"{name}: {channels} channels are not a multiple of {GROUPS}, the groups of its "
                "norms",
                code="checkpoint.invalid-config",
            )
    if any(before == after for before, after in pairwise(sizes.hidden_sizes)):
        raise UsageError(
            f"{name}: hidden_sizes is {sizes.hidden_sizes}, but a stage with stride 2 needs "
            "another width than the stage before",
            code="checkpoint.invalid-config",
        )
    return sizes


def _decoded(raw: dict[str, Any], name: str) -> ResNet10Sizes:
    if raw.get("model_type") != MODEL_TYPE or "hidden_sizes" not in raw:
        raise UsageError(
            f"{name} is not a {MODEL_TYPE}, the only image encoder by name (published as "
            f"{PUBLISHED[0]})",
            code="policy.unknown-choice",
        )
    try:
        return msgspec.convert(raw, ResNet10Sizes)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}/config.json: {error}", code="checkpoint.invalid-config") from None
