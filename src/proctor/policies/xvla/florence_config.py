"""The sizes of a Florence-2, read from a config in the words of its first code or of transformers.

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
    """DaViT's sizes, stage by stage; defaults are Florence-2-large's."""

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
        """Return rows and columns of what is seen of a picture."""
        for size, stride, pad in zip(
            self.patch_size, self.patch_stride, self.patch_padding, strict=True
        ):
            height, width = ((side + 2 * pad - size) // stride + 1 for side in (height, width))
        return height, width


@dataclass(frozen=True)
class BartSizes:
    """Sizes of BART's encoder; the decoder is not used. Defaults are Florence-2-large's."""

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
    """A Florence-2 as far as X-VLA uses it."""

    vision: DavitSizes
    text: BartSizes

    def tokens(self, size: tuple[int, int], words: int) -> tuple[int, int]:
        """Return how many tokens a picture (height, width) makes, and how many are read with words.

        Raises:
            UsageError: it has no places for as many.
        """
        rows, columns = self.vision.grid(*size)
        most = self.vision.max_position_embeddings
        if min(rows, columns) < 1 or max(rows, columns) > most:
            raise UsageError(
                f"pictures of {size[0]}x{size[1]} make a map of {rows}x{columns} (choose up to "
                f"{most}x{most}): say resize_imgs_with_padding"
            )
        view = 1 + rows * columns
        if view + words > self.text.max_position_embeddings:
            raise UsageError(
                f"{view + words} tokens are to be read, and Florence-2 has places for "
                f"{self.text.max_position_embeddings}"
            )
        return view, view + words


PartSizes = TypeVar("PartSizes", DavitSizes, BartSizes)
_KINDS = {
    DavitSizes: (None, "davit", "florence_vision"),
    BartSizes: (None, "florence2_language", "bart"),
}
_SOURCE = ["spatial_avg_pool", "temporal_avg_pool"]


def read_florence(raw: Mapping[str, Any]) -> FlorenceSizes:
    """Return the sizes that ``florence_config`` states; what it leaves out is Florence-2-large's.

    Raises:
        UsageError: another backbone, or sizes that cannot be.
    """
    vision = dict(_section(raw, "vision_config"))
    if "dim_embed" in vision:
        vision["embed_dim"] = vision.pop("dim_embed")
    for name, kind, length in (
        ("image_pos_embed", "learned_abs_2d", "max_position_embeddings"),
        ("visual_temporal_embedding", "COSINE", "max_temporal_embeddings"),
    ):
        told = vision.pop(name, None)
        if told is None:
            continue
        if not isinstance(told, Mapping) or told.get("type") != kind:
            raise UsageError(f"florence_config: {name} is {told!r}, we know {kind} only")
        longest = told.get("max_pos_embeddings", told.get("max_temporal_embeddings"))
        vision[length] = longest if longest is not None else getattr(DavitSizes(), length)
    source = vision.pop("image_feature_source", _SOURCE)
    if source != _SOURCE:
        raise UsageError(f"florence_config: image_feature_source is {source!r}, we know {_SOURCE}")
    made = FlorenceSizes(_part(DavitSizes, vision), _part(BartSizes, _section(raw, "text_config")))
    _check(made)
    return made


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = raw.get(name) or {}
    if not isinstance(section, Mapping):
        raise UsageError(f"florence_config: {name} is no map")
    return section


def _part(cls: type[PartSizes], raw: Mapping[str, Any]) -> PartSizes:
    kind = raw.get("model_type")
    if kind not in _KINDS[cls]:
        raise UsageError(f"florence_config: a {kind!r}, and X-VLA has a Florence-2")
    known = {f.name for f in fields(cls)}
    try:
        return msgspec.convert({k: v for k, v in raw.items() if k in known}, cls)
    except msgspec.ValidationError as error:
        raise UsageError(f"florence_config: {error}") from None


def _check(florence: FlorenceSizes) -> None:
    """Refuse sizes that no network has, before memory is asked for."""
    vision, text = florence.vision, florence.text
    stages = len(vision.embed_dim)
    per_stage = ("depths", "patch_size", "patch_stride", "patch_padding", "patch_prenorm")
    for name in (*per_stage, "num_heads", "num_groups"):
        if len(getattr(vision, name)) != stages or not 1 <= stages <= _STAGES:
            raise UsageError(f"florence_config: {name} has not one number for each of the stages")
    most = {"depths": _MOST_LAYERS, "patch_size": MOST_PIXELS, "patch_stride": MOST_PIXELS}
    most |= {"embed_dim": MOST_WIDTH, "num_heads": MOST_WIDTH, "num_groups": MOST_WIDTH}
    for name, largest in most.items():
        if not all(1 <= value <= largest for value in getattr(vision, name)):
            raise UsageError(f"florence_config: {name} is {getattr(vision, name)}")
    if not all(0 <= pad <= MOST_PIXELS for pad in vision.patch_padding):
        raise UsageError(f"florence_config: patch_padding is {vision.patch_padding}")
    for width, heads, groups in zip(
        vision.embed_dim, vision.num_heads, vision.num_groups, strict=True
    ):
        if width % heads or width % groups:
            raise UsageError(f"florence_config: {width} is no multiple of {heads} and {groups}")
    if vision.in_channels != 3 or not 1 <= vision.window_size <= MOST_PIXELS:
        raise UsageError("florence_config: pictures have 3 channels and windows of 1 pixel or more")
    sizes = {"projection_dim": vision.projection_dim, "d_model": text.d_model}
    sizes |= {"encoder_ffn_dim": text.encoder_ffn_dim}
    longest = (vision.max_position_embeddings, vision.max_temporal_embeddings)
    for name, value in sizes.items():
        if not 1 <= value <= 16 * MOST_WIDTH:
            raise UsageError(f"florence_config: {name} is {value}")
    if not all(1 <= n <= _MOST_WORDS for n in (*longest, text.max_position_embeddings)):
        raise UsageError("florence_config: the numbers of positions cannot be")
    if not 1 <= text.vocab_size <= _MOST_WORDS or not 1 <= text.encoder_layers <= _MOST_LAYERS:
        raise UsageError("florence_config: vocab_size or encoder_layers cannot be")
    if text.encoder_attention_heads < 1 or text.d_model % text.encoder_attention_heads:
        raise UsageError(f"florence_config: d_model {text.d_model} does not split into heads")
    if vision.projection_dim != text.d_model:
        raise UsageError(
            f"florence_config: projection_dim {vision.projection_dim} is not d_model {text.d_model}"
        )
    if {vision.activation_function, text.activation_function} != {"gelu"}:
        raise UsageError("florence_config: activation_function is not gelu")
