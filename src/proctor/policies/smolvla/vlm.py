"""SmolVLA's vision-language model: its default name, and sizes read from its config.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from proctor.errors import UsageError
from proctor.policies.blocks.encoder_sizes import Layers, SiglipSizes, Width, decode_checked
from proctor.policies.lerobot.checkpoint.location import read_config_json

VocabularySize = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]

SMOLVLM2 = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
"""The base model of all published SmolVLA checkpoints."""


@dataclass(frozen=True)
class TextSizes:
    """Sizes of the language model; the defaults are SMOLVLM2's."""

    hidden_size: Width = 960
    intermediate_size: Width = 2560
    num_hidden_layers: Layers = 32
    num_attention_heads: Width = 15
    num_key_value_heads: Width = 5
    head_dim: Width | None = None
    vocab_size: VocabularySize = 49280
    rms_norm_eps: float = 1e-5

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class VlmSizes:
    """Sizes of the whole vision-language model."""

    text_config: TextSizes = TextSizes()
    vision_config: SiglipSizes = field(default_factory=SiglipSizes)
    scale_factor: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4

    @property
    def granularity(self) -> int:
        """Side of the image area that becomes one token, in pixels."""
        return self.vision_config.patch_size * self.scale_factor

    def check(self, where: str) -> None:
        """Refuse sizes that do not make a network."""
        text = self.text_config
        if text.num_attention_heads % text.num_key_value_heads or text.head % 2:
            raise UsageError(
                f"{where}: its attention heads do not divide up", code="checkpoint.invalid-config"
            )
        self.vision_config.check(f"{where}: vision_config")


_OPTIONAL_FIELDS = ("head_dim", "rms_norm_eps", "layer_norm_eps", "hidden_act")
"""Fields that config.json may omit; the defaults are those of transformers."""


def read_vlm_sizes(name: str) -> VlmSizes:
    """Return the sizes of the model ``name``: a local folder or a Hub id.

    SMOLVLM2's sizes need no download.
    """
    if name == SMOLVLM2:
        return VlmSizes()
    stated = read_config_json(name)
    where = f"config.json of vlm_model_name={name}"
    if stated.get("model_type") != "smolvlm":
        raise UsageError(
            f"{where}: model_type is {stated.get('model_type')!r}, expected 'smolvlm'",
            code="policy.wrong-backbone",
        )
    for part, record in (("text_config", TextSizes), ("vision_config", SiglipSizes)):
        section = stated.get(part)
        needed = [key for key in record.__dataclass_fields__ if key not in _OPTIONAL_FIELDS]
        lacking = [key for key in needed if not isinstance(section, dict) or key not in section]
        if lacking:
            raise UsageError(f"{where}: {part} has no {lacking[0]}", code="policy.wrong-backbone")
    return decode_checked(stated, VlmSizes, where)
