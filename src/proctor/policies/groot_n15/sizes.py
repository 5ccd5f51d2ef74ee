"""Sizes of GR00T N1.5's network, read from the config.json of its base model. No torch here.

The sizes of the backbone, Eagle 2.5 VL, are not in that file. They are the published model's, or
those of config.json in the folder that ``backbone_cfg.eagle_path`` names.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from proctor.errors import UsageError
from proctor.policies.blocks.encoder_sizes import Layers, SiglipSizes, Width
from proctor.policies.groot.qwen_sizes import RopeSizes, TextSizes, Vocabulary
from proctor.policies.groot.sizes import GrootSizes, TransformerSizes
from proctor.policies.lerobot.location import read_config_json, read_json

BASE_MODEL = "nvidia/GR00T-N1.5-3B"
"""The published base model of N1.5; its sizes are the defaults here."""
MODEL_TYPE = "gr00t_n1_5"
HORIZON = 16
"""Actions that N1.5 predicts."""


def _text() -> TextSizes:
    return TextSizes(vocab_size=151_680, rope_parameters=RopeSizes(rope_theta=1e6))


def _vision() -> SiglipSizes:
    return SiglipSizes(
        hidden_size=1152,
        intermediate_size=4304,
        num_hidden_layers=27,
        num_attention_heads=16,
        image_size=224,
        patch_size=14,
    )


@dataclass(frozen=True)
class EagleSizes:
    """Sizes of Eagle 2.5 VL; the defaults are those of N1.5's backbone."""

    text_config: TextSizes = field(default_factory=_text)
    vision_config: SiglipSizes = field(default_factory=_vision)
    image_token_index: Vocabulary = 151_669
    select_layer: Layers = 12
    """Layers of the language model that are kept."""
    project_to_dim: Width | None = None
    """Width of the features; None: the language model's."""

    @property
    def image_tokens(self) -> int:
        """Tokens of an image."""
        return (self.vision_config.image_size // self.vision_config.patch_size) ** 2

    @property
    def width(self) -> int:
        """Width of the features."""
        return self.project_to_dim or self.text_config.hidden_size

    def check(self, where: str) -> None:
        """Refuse sizes that do not make a network."""
        self.vision_config.check(where)
        text = self.text_config
        faults = {
            "its attention heads do not divide up": text.num_attention_heads
            % text.num_key_value_heads,
            "a head's width is odd": text.head_dim % 2,
            "image_token_index is not in the vocabulary": self.image_token_index >= text.vocab_size,
        }
        for fault, found in faults.items():
            if found:
                raise UsageError(f"{where}: {fault}", code="policy.wrong-backbone")


def head_sizes() -> GrootSizes:
    """Return the sizes of N1.5's published action head."""
    return GrootSizes(
        max_state_dim=64,
        max_action_dim=32,
        action_horizon=HORIZON,
        use_alternate_vl_dit=False,
        diffusion_model_cfg=TransformerSizes(num_layers=16),
        num_target_vision_tokens=32,
        state_dropout_prob=0.0,
    )


def read_sizes(base: str | None) -> tuple[GrootSizes, EagleSizes]:
    """Return the sizes of the base model ``base`` (a folder or a Hub id) and of its backbone.

    BASE_MODEL, which None means, needs no download.
    """
    if base is None or base.rstrip("/") == BASE_MODEL:
        return head_sizes(), EagleSizes()
    return decode_sizes(read_config_json(base), f"config.json of base_model_path={base}")


def decode_sizes(stated: dict[str, Any], where: str) -> tuple[GrootSizes, EagleSizes]:
    """Decode the config.json of a base model."""
    if stated.get("model_type") != MODEL_TYPE:
        raise UsageError(
            f"{where}: model_type is {stated.get('model_type')!r}, expected {MODEL_TYPE!r}",
            code="policy.wrong-backbone",
        )
    head = decode_head(stated.get("action_head_cfg"), where)
    eagle = _decode_eagle(stated.get("backbone_cfg"), where)
    if eagle.width != head.backbone_embedding_dim:
        raise UsageError(
            f"{where}: backbone_embedding_dim is {head.backbone_embedding_dim}, the backbone's "
            f"width {eagle.width}",
            code="policy.wrong-backbone",
        )
    return head, eagle


def decode_head(stated: Any, where: str) -> GrootSizes:
    """Decode ``action_head_cfg``."""
    given = dict(stated) if isinstance(stated, dict) else {}
    if "action_dim" in given:
        given["max_action_dim"] = given["action_dim"]
    defaults = msgspec.to_builtins(head_sizes())
    try:
        sizes = msgspec.convert(
            defaults | given | {"use_alternate_vl_dit": False, "state_dropout_prob": 0.0},
            GrootSizes,
        )
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}", code="policy.wrong-backbone") from None
    sizes.check(where)
    return sizes


def _decode_eagle(stated: Any, where: str) -> EagleSizes:
    given = stated if isinstance(stated, dict) else {}
    folder = Path(str(given.get("eagle_path") or "")) / "config.json"
    parts = read_json(folder) if given.get("eagle_path") and folder.is_file() else {}
    known = {name: given[name] for name in ("select_layer", "project_to_dim") if name in given}
    return decode_eagle(parts | known, where)


def decode_eagle(stated: dict[str, Any], where: str) -> EagleSizes:
    """Decode the sizes of the backbone."""
    text = stated.get("text_config")
    if isinstance(text, dict) and "rope_theta" in text:
        text = {**text, "rope_parameters": {"rope_theta": text["rope_theta"]}}
        stated = stated | {"text_config": text}
    try:
        sizes = msgspec.convert(stated, EagleSizes)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}", code="policy.wrong-backbone") from None
    if sizes.select_layer > sizes.text_config.num_hidden_layers:
        sizes = replace(sizes, select_layer=sizes.text_config.num_hidden_layers)
    sizes.check(where)
    return sizes
