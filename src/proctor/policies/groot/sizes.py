"""Sizes of GR00T's network, read from the config.json of its base model. No torch here.

LeRobot's own config.json does not hold them: it names the base model by ``base_model_path``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from proctor.errors import UsageError
from proctor.policies.blocks.encoder_sizes import Layers, Width
from proctor.policies.groot.qwen_sizes import COSMOS, QwenSizes, read_qwen_sizes
from proctor.policies.lerobot.location import read_config_json

BASE_MODEL = "nvidia/GR00T-N1.7-3B"
"""The published base model of N1.7; its sizes are the defaults here."""
MODEL_TYPE = "Gr00tN1d7"
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
    action_horizon: Steps = 40
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
        for fault, found in faults.items():
            if found:
                raise UsageError(f"{where}: {fault}", code="policy.wrong-backbone")


def read_sizes(base: str | None) -> tuple[GrootSizes, QwenSizes]:
    """Return the sizes of the base model ``base`` (a folder or a Hub id) and of its backbone.

    BASE_MODEL, which None means, needs no download.
    """
    if base is None or base.rstrip("/") == BASE_MODEL:
        return GrootSizes(), QwenSizes()
    where = f"config.json of base_model_path={base}"
    sizes = decode_sizes(read_config_json(base), where)
    qwen = read_qwen_sizes(sizes.model_name)
    if qwen.text_config.hidden_size != sizes.backbone_embedding_dim:
        raise UsageError(
            f"{where}: backbone_embedding_dim is {sizes.backbone_embedding_dim}, the backbone's "
            f"width {qwen.text_config.hidden_size}",
            code="policy.wrong-backbone",
        )
    return sizes, qwen


def decode_sizes(stated: dict[str, Any], where: str) -> GrootSizes:
    """Decode the config.json of a base model."""
    if stated.get("model_type") != MODEL_TYPE:
        raise UsageError(
            f"{where}: model_type is {stated.get('model_type')!r}, expected {MODEL_TYPE!r}",
            code="policy.wrong-backbone",
        )
    attention = stated.get("vl_self_attention_cfg", {})
    known = {k: v for k, v in stated.items() if k != "vl_self_attention_cfg"}
    if attention is None:
        attention = {"num_layers": 0}
    if attention:
        known["vl_self_attention_cfg"] = attention
    try:
        sizes = msgspec.convert(known, GrootSizes)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}", code="policy.wrong-backbone") from None
    sizes.check(where)
    return sizes
