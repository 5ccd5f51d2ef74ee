"""Sizes of GR00T's networks, read from the config.json of their base model. No torch here.

LeRobot's own config.json does not hold them: it names the base model by ``base_model_path``. The
sizes of N1.5's backbone, Eagle 2.5 VL, are not in that file either: they are the published model's,
or those of config.json in the folder that ``backbone_cfg.eagle_path`` names.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from proctor.errors import UsageError
from proctor.policies.blocks.encoder_sizes import (
    Layers,
    SiglipSizes,
    Width,
    decode_checked,
    refuse_faults,
)
from proctor.policies.groot.network.qwen_sizes import (
    COSMOS,
    QwenSizes,
    RopeSizes,
    TextSizes,
    Vocabulary,
    read_qwen_sizes,
)
from proctor.policies.lerobot.checkpoint.location import read_config_json, read_json

BASE_MODEL, MODEL_TYPE, HORIZON = "nvidia/GR00T-N1.7-3B", "Gr00tN1d7", 40
"""N1.7's published base model, whose sizes are the defaults here, and the actions it predicts."""
N15_BASE_MODEL, N15_MODEL_TYPE, N15_HORIZON = "nvidia/GR00T-N1.5-3B", "gr00t_n1_5", 16
"""Those of N1.5."""
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Steps = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


@dataclass(frozen=True)
class TransformerSizes:
    """Sizes of a transformer of the action head, in its config's words."""

    num_layers: Annotated[int, msgspec.Meta(ge=0, le=200)] = 32
    num_attention_heads: Width = 32
    attention_head_dim: Width = 48
    dropout: Share = 0.2
    output_dim: Width = 1024
    final_dropout: bool = True
    positional_embeddings: None = None
    interleave_self_attention: bool = True

    @property
    def width(self) -> int:
        """Width of a token."""
        return self.num_attention_heads * self.attention_head_dim


def _vl_self_attention() -> TransformerSizes:
    return TransformerSizes(num_layers=4, attention_head_dim=64)


@dataclass(frozen=True)
class GrootSizes:
    """Sizes of the action head and settings of flow matching; the defaults are N1.7's."""

    model_name: str = COSMOS
    select_layer: Layers = 16
    backbone_embedding_dim: Width = 2048
    max_state_dim: Width = 132
    max_action_dim: Width = 132
    action_horizon: Steps = HORIZON
    hidden_size: Width = 1024
    input_embedding_dim: Width = 1536
    state_history_length: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    add_pos_embed: bool = True
    use_vlln: bool = True
    max_seq_len: Steps = 1024
    use_alternate_vl_dit: bool = True
    attend_text_every_n_blocks: Annotated[int, msgspec.Meta(ge=1, le=100)] = 2
    diffusion_model_cfg: TransformerSizes = field(default_factory=TransformerSizes)
    vl_self_attention_cfg: TransformerSizes = field(default_factory=_vl_self_attention)
    num_inference_timesteps: Steps = 4
    noise_beta_alpha: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.5
    noise_beta_beta: Annotated[float, msgspec.Meta(ge=1, le=1)] = 1.0
    noise_s: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.999
    num_timestep_buckets: Steps = 1000
    state_dropout_prob: Share = 0.2
    max_num_embodiments: Steps = 32
    num_target_vision_tokens: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """Learned tokens between state and actions, which N1.5 has."""
    rtc_ramp_rate: float = 6.0

    def check(self, where: str) -> None:
        """Refuse sizes that do not fit together."""
        faults = {
            "input_embedding_dim is not the width of diffusion_model_cfg": self.input_embedding_dim
            != self.diffusion_model_cfg.width,
            "hidden_size is not the output_dim of diffusion_model_cfg": self.hidden_size
            != self.diffusion_model_cfg.output_dim,
            "backbone_embedding_dim is not the width of vl_self_attention_cfg": (
                self.vl_self_attention_cfg.num_layers > 0
                and self.backbone_embedding_dim != self.vl_self_attention_cfg.width
            ),
            "max_seq_len is shorter than action_horizon": self.max_seq_len < self.action_horizon,
            "diffusion_model_cfg must interleave self-attention": (
                not self.diffusion_model_cfg.interleave_self_attention
            ),
            "input_embedding_dim is odd": self.input_embedding_dim % 2 == 1,
        }
        refuse_faults(where, faults)


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
        outside = self.image_token_index >= text.vocab_size
        refuse_faults(
            where,
            {
                "its attention heads do not divide up": text.num_attention_heads
                % text.num_key_value_heads,
                "a head's width is odd": text.head_dim % 2,
                "image_token_index is not in the vocabulary": outside,
            },
        )


def is_published(base: str | None, published: str) -> bool:
    """Whether ``base`` means the ``published`` base model, whose sizes need no download."""
    return base is None or base.rstrip("/") == published


def read_sizes(base: str | None) -> tuple[GrootSizes, QwenSizes]:
    """Return the sizes of N1.7's base model ``base`` (a folder or a Hub id) and of its backbone."""
    if is_published(base, BASE_MODEL):
        return GrootSizes(), QwenSizes()
    assert base is not None, "None is published"
    where = f"config.json of base_model_path={base}"
    sizes = decode_sizes(read_config_json(base), where)
    qwen = read_qwen_sizes(sizes.model_name)
    _check_width(sizes, qwen.text_config.hidden_size, where)
    return sizes, qwen


def read_n15_sizes(base: str | None) -> tuple[GrootSizes, EagleSizes]:
    """Return the sizes of N1.5's base model ``base`` (a folder or a Hub id) and of its backbone."""
    if is_published(base, N15_BASE_MODEL):
        return n15_head_sizes(), EagleSizes()
    assert base is not None, "None is published"
    return decode_n15_sizes(read_config_json(base), f"config.json of base_model_path={base}")


def decode_sizes(stated: dict[str, Any], where: str) -> GrootSizes:
    """Decode the config.json of a base model of N1.7."""
    _check_type(stated, MODEL_TYPE, where)
    attention = stated.get("vl_self_attention_cfg", {})
    known = {k: v for k, v in stated.items() if k != "vl_self_attention_cfg"}
    if attention is None:
        attention = {"num_layers": 0}
    if attention:
        known["vl_self_attention_cfg"] = attention
    return decode_checked(known, GrootSizes, where)


def decode_n15_sizes(stated: dict[str, Any], where: str) -> tuple[GrootSizes, EagleSizes]:
    """Decode the config.json of a base model of N1.5."""
    _check_type(stated, N15_MODEL_TYPE, where)
    head = decode_n15_head(stated.get("action_head_cfg"), where)
    given = stated.get("backbone_cfg")
    given = given if isinstance(given, dict) else {}
    file = Path(str(given.get("eagle_path") or "")) / "config.json"
    parts = read_json(file) if given.get("eagle_path") and file.is_file() else {}
    known = {name: given[name] for name in ("select_layer", "project_to_dim") if name in given}
    eagle = decode_eagle(parts | known, where)
    _check_width(head, eagle.width, where)
    return head, eagle


def n15_head_sizes() -> GrootSizes:
    """Return the sizes of N1.5's published action head."""
    return GrootSizes(
        max_state_dim=64,
        max_action_dim=32,
        action_horizon=N15_HORIZON,
        use_alternate_vl_dit=False,
        diffusion_model_cfg=TransformerSizes(num_layers=16),
        num_target_vision_tokens=32,
        state_dropout_prob=0.0,
    )


def decode_n15_head(stated: Any, where: str) -> GrootSizes:
    """Decode ``action_head_cfg``."""
    given = dict(stated) if isinstance(stated, dict) else {}
    if "action_dim" in given:
        given["max_action_dim"] = given["action_dim"]
    fixed = {"use_alternate_vl_dit": False, "state_dropout_prob": 0.0}
    return decode_checked(msgspec.to_builtins(n15_head_sizes()) | given | fixed, GrootSizes, where)


def decode_eagle(stated: dict[str, Any], where: str) -> EagleSizes:
    """Decode the sizes of N1.5's backbone."""
    text = stated.get("text_config")
    if isinstance(text, dict) and "rope_theta" in text:
        text = {**text, "rope_parameters": {"rope_theta": text["rope_theta"]}}
        stated = stated | {"text_config": text}
    sizes = decode_checked(stated, EagleSizes, where)
    most = sizes.text_config.num_hidden_layers
    return replace(sizes, select_layer=most) if sizes.select_layer > most else sizes


def _check_type(stated: dict[str, Any], expected: str, where: str) -> None:
    if stated.get("model_type") != expected:
        raise UsageError(
            f"{where}: model_type is {stated.get('model_type')!r}, expected {expected!r}",
            code="policy.wrong-backbone",
        )


def _check_width(head: GrootSizes, width: int, where: str) -> None:
    if width != head.backbone_embedding_dim:
        raise UsageError(
            f"{where}: backbone_embedding_dim is {head.backbone_embedding_dim}, the backbone's "
            f"width {width}",
            code="policy.wrong-backbone",
        )
