"""Sizes of a Florence-2, read from a config with its original field names or transformers'.

No torch here: `--help` reads this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import msgspec

from proctor.errors import UsageError
from proctor.policies.lerobot.processors.limits import (
    ALLOWED,
    MOST_PIXELS,
    MOST_WIDTH,
    WIDTH,
    Limits,
    check_fields,
    up_to,
)
from proctor.settings import declared

_STAGES = 8
_WIDTH, _LAYERS, _WORDS = up_to(16 * MOST_WIDTH), up_to(256), up_to(2**20)


def _size(default: Any, allowed: Limits) -> Any:
    return declared(default, {ALLOWED: allowed})


@dataclass(frozen=True)
class DavitSizes:
    """Sizes of DaViT, stage by stage; the defaults are those of Florence-2-large."""

    depths: list[int] = _size([1, 1, 9, 1], _LAYERS)
    patch_size: list[int] = _size([7, 3, 3, 3], up_to(MOST_PIXELS))
    patch_stride: list[int] = _size([4, 2, 2, 2], up_to(MOST_PIXELS))
    patch_padding: list[int] = _size([3, 1, 1, 1], Limits(0, MOST_PIXELS))
    patch_prenorm: list[bool] = declared([False, True, True, True], {})
    embed_dim: list[int] = _size([256, 512, 1024, 2048], WIDTH)
    num_heads: list[int] = _size([8, 16, 32, 64], WIDTH)
    num_groups: list[int] = _size([8, 16, 32, 64], WIDTH)
    in_channels: int = _size(3, Limits(3, 3))
    window_size: int = _size(12, up_to(MOST_PIXELS))
    drop_path_rate: float = 0.1
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    activation_function: str = "gelu"
    projection_dim: int = _size(1024, _WIDTH)
    max_temporal_embeddings: int = _size(100, _WORDS)
    max_position_embeddings: int = _size(50, _WORDS)

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

    vocab_size: int = _size(51289, _WORDS)
    d_model: int = _size(1024, _WIDTH)
    encoder_layers: int = _size(12, _LAYERS)
    encoder_attention_heads: int = 16
    encoder_ffn_dim: int = _size(4096, _WIDTH)
    max_position_embeddings: int = _size(4096, _WORDS)
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
    check_fields(text, "florence_config: ")
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
    check_fields(vision, "florence_config: ")
    for width, heads, groups in zip(
        vision.embed_dim, vision.num_heads, vision.num_groups, strict=True
    ):
        if width % heads or width % groups:
            raise UsageError(
                f"florence_config: embed_dim {width} is not divisible by {heads} heads and "
                f"{groups} groups",
                code="policy.not-divisible",
            )
