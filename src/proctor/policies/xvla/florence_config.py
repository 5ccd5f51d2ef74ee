"""Sizes of a Florence-2, read from a config with its original field names or transformers'.

No torch here: `--help` reads this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import msgspec

from proctor.errors import UsageError
from proctor.policies.lerobot.limits import MOST_PIXELS, MOST_WIDTH

_STAGES = 8
_MOST_LAYERS = 256
_MOST_WORDS = 2**20


@dataclass(frozen=True)
class DavitSizes:
    """Sizes of DaViT, stage by stage; the defaults are those of Florence-2-large."""

    depths: list[int] = field(default_factory=lambda: [1, 1, 9, 1])
    patch_size: list[int] = field(default_factory=lambda: [7, 3, 3, 3])
    patch_stride: list[int] = field(default_factory=lambda: [4, 2, 2, 2])
    patch_padding: list[int] = field(default_factory=lambda: [3, 1, 1, 1])
    patch_prenorm: list[bool] = field(default_factory=lambda: [False, True, True, True])
    embed_dim: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048])
    num_heads: list[int] = field(default_factory=lambda: [8, 16, 32, 64])
    num_groups: list[int] = field(default_factory=lambda: [8, 16, 32, 64])
    in_channels: int = 3
    window_size: int = 12
    drop_path_rate: float = 0.1
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    activation_function: str = "gelu"
    projection_dim: int = 1024
    max_temporal_embeddings: int = 100
    max_position_embeddings: int = 50

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of an image's feature map."""
        for size, stride, pad in zip(
            self.patch_size, self.patch_stride, self.patch_padding, strict=True
        ):
            height, width = ((side + 2 * pad - size) // stride + 1 for side in (height, width))
        return height, width


@dataclass(frozen=True)
class BartSizes:
    """Sizes of BART's encoder; the defaults are those of Florence-2-large."""

    vocab_size: int = 51289
    d_model: int = 1024
    encoder_layers: int = 12
    encoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096
    max_position_embeddings: int = 4096
    activation_function: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    encoder_layerdrop: float = 0.0
    scale_embedding: bool = False


@dataclass(frozen=True)
class FlorenceSizes:
    """Sizes of the parts of Florence-2 that X-VLA uses; BART's decoder is not among them."""

    vision: DavitSizes
    text: BartSizes

    def tokens(self, size: tuple[int, int], words: int) -> tuple[int, int]:
        """Return the number of tokens of an image (height, width), and of image and prompt."""
        rows, columns = self.vision.grid(*size)
        most = self.vision.max_position_embeddings
        if min(rows, columns) < 1 or max(rows, columns) > most:
            raise UsageError(
                f"images of {size[0]}x{size[1]} give a feature map of {rows}x{columns}, expected "
                f"at most {most}x{most}: set resize_imgs_with_padding",
                code="policy.image-size-mismatch",
            )
        view = 1 + rows * columns
        if view + words > self.text.max_position_embeddings:
            raise UsageError(
                f"image and prompt have {view + words} tokens; Florence-2 has position embeddings "
                f"for {self.text.max_position_embeddings}",
                code="policy.too-many-tokens",
            )
        return view, view + words


PartSizes = TypeVar("PartSizes", DavitSizes, BartSizes)
_KINDS = {
    DavitSizes: (None, "davit", "florence_vision"),
    BartSizes: (None, "florence2_language", "bart"),
}
_SOURCE = ["spatial_avg_pool", "temporal_avg_pool"]


def read_florence(raw: Mapping[str, Any]) -> FlorenceSizes:
    """Return the sizes in ``florence_config``; omitted fields are those of Florence-2-large."""
    vision = dict(_section(raw, "vision_config"))
    if "dim_embed" in vision:
        vision["embed_dim"] = vision.pop("dim_embed")
    for name, kind, length in (
        ("image_pos_embed", "learned_abs_2d", "max_position_embeddings"),
        ("visual_temporal_embedding", "COSINE", "max_temporal_embeddings"),
    ):
        embedding = vision.pop(name, None)
        if embedding is None:
            continue
        if not isinstance(embedding, Mapping) or embedding.get("type") != kind:
            raise UsageError(
                f"florence_config: {name} is {embedding!r}, only {kind} is supported",
                code="policy.wrong-backbone",
            )
        longest = embedding.get("max_pos_embeddings", embedding.get("max_temporal_embeddings"))
        vision[length] = longest if longest is not None else getattr(DavitSizes(), length)
    source = vision.pop("image_feature_source", _SOURCE)
    if source != _SOURCE:
        raise UsageError(
            f"florence_config: image_feature_source is {source!r}, only {_SOURCE} is supported",
            code="policy.wrong-backbone",
        )
    made = FlorenceSizes(_part(DavitSizes, vision), _part(BartSizes, _section(raw, "text_config")))
    _check(made)
    return made


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = raw.get(name) or {}
    if not isinstance(section, Mapping):
        raise UsageError(f"florence_config: {name} is not a mapping", code="policy.wrong-backbone")
    return section


def _part(cls: type[PartSizes], raw: Mapping[str, Any]) -> PartSizes:
    kind = raw.get("model_type")
    if kind not in _KINDS[cls]:
        raise UsageError(
            f"florence_config: model_type is {kind!r}; X-VLA has a Florence-2",
            code="policy.wrong-backbone",
        )
    known = {f.name for f in fields(cls)}
    try:
        return msgspec.convert({k: v for k, v in raw.items() if k in known}, cls)
    except msgspec.ValidationError as error:
        raise UsageError(f"florence_config: {error}", code="policy.wrong-backbone") from None


def _check(florence: FlorenceSizes) -> None:
    """Refuse invalid sizes before the network allocates memory."""
    vision, text = florence.vision, florence.text
    _check_stages(vision)
    _check_sizes(vision, text)
    if text.encoder_attention_heads < 1 or text.d_model % text.encoder_attention_heads:
        raise UsageError(
            f"florence_config: d_model {text.d_model} is not divisible by encoder_attention_heads",
            code="policy.not-divisible",
        )
    if vision.projection_dim != text.d_model:
        raise UsageError(
            f"florence_config: projection_dim is {vision.projection_dim}, d_model {text.d_model}; "
            "they must be equal",
            code="policy.wrong-backbone",
        )
    if {vision.activation_function, text.activation_function} != {"gelu"}:
        raise UsageError(
            "florence_config: activation_function is not gelu", code="policy.wrong-backbone"
        )


def _check_stages(vision: DavitSizes) -> None:
    """Refuse invalid stages of the vision encoder."""
    stages = len(vision.embed_dim)
    per_stage = ("depths", "patch_size", "patch_stride", "patch_padding", "patch_prenorm")
    for name in (*per_stage, "num_heads", "num_groups"):
        if len(getattr(vision, name)) != stages or not 1 <= stages <= _STAGES:
            raise UsageError(
                f"florence_config: {name} must have one number per stage, for 1-{_STAGES} stages",
                code="policy.invalid-shape",
            )
    most = {"depths": _MOST_LAYERS, "patch_size": MOST_PIXELS, "patch_stride": MOST_PIXELS}
    most |= {"embed_dim": MOST_WIDTH, "num_heads": MOST_WIDTH, "num_groups": MOST_WIDTH}
    for name, largest in most.items():
        if not all(1 <= value <= largest for value in getattr(vision, name)):
            raise UsageError(
                f"florence_config: {name} is {getattr(vision, name)}", code="policy.out-of-range"
            )
    if not all(0 <= pad <= MOST_PIXELS for pad in vision.patch_padding):
        raise UsageError(
            f"florence_config: patch_padding is {vision.patch_padding}", code="policy.out-of-range"
        )
    for width, heads, groups in zip(
        vision.embed_dim, vision.num_heads, vision.num_groups, strict=True
    ):
        if width % heads or width % groups:
            raise UsageError(
                f"florence_config: embed_dim {width} is not divisible by {heads} heads and "
                f"{groups} groups",
                code="policy.not-divisible",
            )


def _check_sizes(vision: DavitSizes, text: BartSizes) -> None:
    """Refuse sizes out of range, of both encoders."""
    if vision.in_channels != 3 or not 1 <= vision.window_size <= MOST_PIXELS:
        raise UsageError(
            "florence_config: expected in_channels 3 and a window_size of at least 1",
            code="policy.out-of-range",
        )
    sizes = {"projection_dim": vision.projection_dim, "d_model": text.d_model}
    sizes |= {"encoder_ffn_dim": text.encoder_ffn_dim}
    longest = (vision.max_position_embeddings, vision.max_temporal_embeddings)
    for name, value in sizes.items():
        if not 1 <= value <= 16 * MOST_WIDTH:
            raise UsageError(f"florence_config: {name} is {value}", code="policy.out-of-range")
    if not all(1 <= n <= _MOST_WORDS for n in (*longest, text.max_position_embeddings)):
        raise UsageError(
            "florence_config: max_position_embeddings or max_temporal_embeddings is not in "
            f"1-{_MOST_WORDS}",
            code="policy.out-of-range",
        )
    if not 1 <= text.vocab_size <= _MOST_WORDS or not 1 <= text.encoder_layers <= _MOST_LAYERS:
        raise UsageError(
            "florence_config: vocab_size or encoder_layers is out of range",
            code="policy.out-of-range",
        )
