"""Sizes of the Qwen3-VL backbone, read from its config.json. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from proctor.errors import UsageError
from proctor.policies.blocks.encoder_sizes import Layers, Width, decode_checked, refuse_faults
from proctor.policies.lerobot.checkpoint.location import read_config_json

COSMOS = "nvidia/Cosmos-Reason2-2B"
"""The backbone of GR00T N1.7; its repository is gated, so its sizes are here."""
Small = Annotated[int, msgspec.Meta(ge=1, le=64)]
Vocabulary = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Layer = Annotated[int, msgspec.Meta(ge=0, le=200)]


@dataclass(frozen=True)
class RopeSizes:
    """Settings of the rotary position embeddings."""

    mrope_section: list[Layer] = field(default_factory=lambda: [24, 20, 20])
    rope_theta: float = 5e6


@dataclass(frozen=True)
class TextSizes:
    """Sizes of the language model."""

    hidden_size: Width = 2048
    intermediate_size: Width = 6144
    num_hidden_layers: Layers = 28
    num_attention_heads: Width = 16
    num_key_value_heads: Width = 8
    head_dim: Width = 128
    vocab_size: Vocabulary = 151_936
    rms_norm_eps: float = 1e-6
    rope_parameters: RopeSizes = field(default_factory=RopeSizes)

    @property
    def groups(self) -> int:
        """Query heads that share a key-value head."""
        return self.num_attention_heads // self.num_key_value_heads


@dataclass(frozen=True)
class VisionSizes:
    """Sizes of the vision encoder."""

    hidden_size: Width = 1024
    intermediate_size: Width = 4096
    depth: Layers = 24
    num_heads: Width = 16
    in_channels: Small = 3
    patch_size: Small = 16
    temporal_patch_size: Small = 2
    spatial_merge_size: Small = 2
    out_hidden_size: Width = 2048
    num_position_embeddings: Vocabulary = 2304
    deepstack_visual_indexes: list[Layer] = field(default_factory=lambda: [5, 11, 17])

    @property
    def side(self) -> int:
        """Positions along one side of the square grid of position embeddings."""
        return math.isqrt(self.num_position_embeddings)

    @property
    def token_pixels(self) -> int:
        """Side of the square of pixels that becomes one token."""
        return self.patch_size * self.spatial_merge_size


@dataclass(frozen=True)
class QwenSizes:
    """Sizes of the whole backbone."""

    text_config: TextSizes = field(default_factory=TextSizes)
    vision_config: VisionSizes = field(default_factory=VisionSizes)

    def check(self, where: str) -> None:
        """Refuse sizes that do not make a network."""
        text, vision = self.text_config, self.vision_config
        faults = {
            "its attention heads do not divide up": text.num_attention_heads
            % text.num_key_value_heads
            or vision.hidden_size % vision.num_heads,
            "a head's width is odd": text.head_dim % 2
            or vision.hidden_size // vision.num_heads % 4,
            "num_position_embeddings is no square": vision.side**2
            != vision.num_position_embeddings,
            "out_hidden_size is not the language model's width": vision.out_hidden_size
            != text.hidden_size,
            "deepstack_visual_indexes are beyond its layers": any(
                n >= vision.depth for n in vision.deepstack_visual_indexes
            ),
            "mrope_section has not three parts of half a head": len(
                text.rope_parameters.mrope_section
            )
            != 3
            or sum(text.rope_parameters.mrope_section) != text.head_dim // 2,
        }
        refuse_faults(where, faults)


def read_qwen_sizes(name: str) -> QwenSizes:
    """Return the sizes of the backbone ``name``: a local folder or a Hub id.

    COSMOS needs no download.
    """
    if name.rstrip("/") == COSMOS:
        return QwenSizes()
    stated = read_config_json(name)
    where = f"config.json of the backbone {name}"
    if stated.get("model_type") != "qwen3_vl":
        raise UsageError(
            f"{where}: model_type is {stated.get('model_type')!r}, expected 'qwen3_vl'",
            code="policy.wrong-backbone",
        )
    return decode_checked(_with_rope(stated), QwenSizes, where)


def _with_rope(stated: dict[str, Any]) -> dict[str, Any]:
    """Return a config whose rotary settings have the names of transformers 5.

    Older files call them ``rope_scaling``, with ``rope_theta`` beside it.
    """
    text = stated.get("text_config")
    if not isinstance(text, dict) or "rope_parameters" in text:
        return stated
    old = text.get("rope_scaling")
    rope = dict(old) if isinstance(old, dict) else {}
    if "rope_theta" in text:
        rope["rope_theta"] = text["rope_theta"]
    return stated | {"text_config": text | {"rope_parameters": rope}}
