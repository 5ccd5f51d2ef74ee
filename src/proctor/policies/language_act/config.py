"""Config and plug-in of ACT conditioned on language: one policy for many tasks.

Tasks share scenes, so images alone do not identify the task. The network is in network.py. No torch
here: `--help` reads configs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from proctor.errors import UsageError
from proctor.features import Array, NormMode
from proctor.fingerprint import PRESENTATION
from proctor.policies.act.config import ActConfig
from proctor.policies.language_act.text_encoding import (
    NEWEST_ENCODING,
    TEXT_ENCODINGS,
    piece_weights,
)
from proctor.policies.lerobot.config.config import (
    NOT_A_FLAG,
    CheckpointPlugin,
    setting,
    training_setting,
)
from proctor.policies.lerobot.config.feature_json import channels_first
from proctor.policies.lerobot.config.presets import (
    ScheduleSettings,
    TrainingPreset,
    constant_preset,
)
from proctor.policies.lerobot.config.shared_fields import normalization, shared
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import SHARE, Limits

WORDS = "words"
"""Key of the network's input with the hashed word pieces of an instruction."""
_MOST_SHIFT = 64


@dataclass
class LanguageActConfig(ActConfig):
    """ACT's fields with defaults for many tasks trained from scratch, and its own fields."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Images": "crop",
    }

    type: str = "language_act"
    chunk_size: int = shared("chunk_size", 20)
    n_action_steps: int = shared("n_action_steps", 10)
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.MEAN_STD,
        STATE=NormMode.MEAN_STD,
        ENV=NormMode.MEAN_STD,
        ACTION=NormMode.MEAN_STD,
    )
    pretrained_backbone_weights: str | None = training_setting(
        None,
        "pretrained weights of the image encoder; only none is supported",
        default_help="random initialisation",
    )
    backbone_file: str | None = field(default=None, metadata={"saved": False, "hidden": True})
    replace_final_stride_with_dilation: bool = setting(
        True, "use stride 1 in the last stage of the image encoder: a larger feature map"
    )
    pre_norm: bool = setting(
        True,
        "apply LayerNorm before each transformer block, not after it; with false, a long training "
        "diverged",
    )
    feature_norm: bool | None = setting(
        True,
        "normalise the input of each block of the image encoder, its features and the sentence "
        "embedding",
    )
    qk_norm: bool | None = setting(
        True, "normalise queries and keys of each attention head, which limits attention's logits"
    )
    dim_model: int = setting(256, "width of the transformer")
    dim_feedforward: int = setting(1024, "width of the feed-forward layers")
    n_decoder_layers: int = setting(3, "transformer decoder layers")
    use_vae: bool = setting(False, "train as a conditional VAE; the latent is zero in evaluation")
    dropout: float = shared("dropout", 0.05)
    optimizer_lr: float = shared("optimizer_lr", 5e-4)
    optimizer_weight_decay: float = shared("optimizer_weight_decay", 1e-3)
    optimizer_lr_backbone: float = shared("optimizer_lr_backbone", 5e-4)
    scheduler_warmup_steps: int = training_setting(
        300, "warm-up steps of the learning rate, before the cosine decay", Limits(0)
    )
    crop: list[int] | None = setting(
        None, "crop images to [top,left,height,width] pixels", default_help="the whole image"
    )
    random_shift: int = training_setting(
        4, "augmentation: maximum random shift of images, in pixels", Limits(0, _MOST_SHIFT)
    )
    state_noise: float = training_setting(
        0.02, "augmentation: standard deviation of noise on the normalised state", Limits(0)
    )
    word_dropout: float = training_setting(
        0.1, "augmentation: probability that a word of the instruction is dropped", SHARE
    )
    text_encoding: int = field(default=NEWEST_ENCODING, metadata=NOT_A_FLAG | PRESENTATION)
    """Version of the text encoding; not in the fingerprint, since config.json is hashed."""

    uses_all_weights: ClassVar[bool] = True
    values_in_old_files: ClassVar[Mapping[str, Any]] = {
        "text_encoding": 1,
        "pre_norm": False,
        "feature_norm": None,
        "qk_norm": None,
    }

    def __post_init__(self) -> None:
        # None and false are one definition, also with runs from before these fields.
        self.feature_norm, self.qk_norm = self.feature_norm or None, self.qk_norm or None

    @property
    def most_words(self) -> int:
        """Maximum number of words and punctuation marks of an instruction."""
        return TEXT_ENCODINGS[self.text_encoding].most_words

    def encode_instruction(self, instruction: str) -> dict[str, Array]:
        """Return the hashed word pieces of an instruction."""
        return {WORDS: TEXT_ENCODINGS[self.text_encoding].read(instruction)}

    def instruction_key(self, read: Mapping[str, Array]) -> Hashable:
        """Return the weights of the pieces; the mean over words ignores their order."""
        return piece_weights(read[WORDS])

    def training_preset(self) -> TrainingPreset:
        """Return AdamW with a warm-up and a cosine decay."""
        steps = self.scheduler_warmup_steps
        return replace(
            constant_preset(
                "adamw",
                self.optimizer_lr,
                weight_decay=self.optimizer_weight_decay,
                grad_clip_norm=5.0,
            ),
            schedule=ScheduleSettings(type="diffuser", num_warmup_steps=steps, name="cosine"),
        )

    def validate(self) -> None:
        """Also check the fields that ACT does not have."""
        if self.text_encoding not in TEXT_ENCODINGS:
            raise UsageError(
                f"text_encoding is {self.text_encoding}: this Proctor is too old for it; upgrade",
                code="checkpoint.too-new",
            )
        super().validate()
        if self.pretrained_backbone_weights is not None:
            raise UsageError(
                "language_act's image encoder has no pretrained weights; set "
                "pretrained_backbone_weights to null",
                code="policy.unsupported-field",
            )
        if self.crop is not None:
            self._check_crop(self.crop)

    def _check_crop(self, crop: list[int]) -> None:
        if len(crop) != 4 or min(crop[:2]) < 0 or min(crop[2:]) < 1:
            raise UsageError(
                f"crop is {crop}, expected [top, left, height, width]", code="policy.invalid-shape"
            )
        for key in self.cameras:
            _, height, width = channels_first(self.input_features[key])
            if crop[0] + crop[2] > height or crop[1] + crop[3] > width:
                raise UsageError(
                    f"crop {crop} is not inside {key}, which is {height}x{width}",
                    code="policy.crop-too-large",
                )


PLUGIN = CheckpointPlugin(
    config=LanguageActConfig,
    summary="ACT conditioned on language, untrained (trained: --policy.path)",
    network="proctor.policies.language_act.network:LanguageAct",
    prefix="model.",
    signature_fields=frozenset({"n_vae_encoder_layers", "word_dropout"}),
    make=make_fresh,
)
