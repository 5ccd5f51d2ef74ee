"""Config and plug-in of the reward classifier (HIL-SERL, Luo et al., 2024).

It judges images: a frozen ResNet10, a projection for each camera, and a small classifier. It is
trained on ``next.reward`` of a dataset. The network is in network.py. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

from proctor.errors import UsageError
from proctor.features import REWARD, Feature, FeatureKind, Interface, NormMode
from proctor.fingerprint import LOCAL_PATH, PRESENTATION, TRAINING_ONLY
from proctor.policies.blocks.encoder_sizes import ResNet10Sizes, resnet10_sizes
from proctor.policies.lerobot.config.config import (
    NOT_A_FLAG,
    CheckpointConfig,
    CheckpointPlugin,
    run_flag,
    setting,
    training_setting,
    unused,
)
from proctor.policies.lerobot.config.presets import SampleWindows, TrainingPreset, constant_preset
from proctor.policies.lerobot.config.shared_fields import normalization, shared
from proctor.policies.lerobot.processors.limits import (
    SHARE,
    WIDTH,
    Choices,
    Limits,
    check_camera,
    check_fields,
    up_to,
)

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors.processors import StepLists, UsualSteps

GRID = (4, 4)
"""Size of the feature map that LeRobot's spatial embedding assumes."""
_ABSENT = {"saved": False} | NOT_A_FLAG
"""Field metadata: a field of policies that LeRobot's reward models do not have."""


@dataclass
class RewardClassifierConfig(CheckpointConfig):
    """The reward classifier's fields, with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {"Images": "model_name model_file"}
    pipeline_names: ClassVar[tuple[str, str]] = (
        "classifier_preprocessor",
        "classifier_postprocessor",
    )

    type: str = "reward_classifier"
    n_obs_steps: int = field(default=1, metadata=_ABSENT)
    use_amp: bool = field(default=False, metadata=_ABSENT)
    use_peft: bool = field(default=False, metadata=_ABSENT)
    device: str | None = field(default="cpu", metadata=PRESENTATION)
    name: str = unused("reward_classifier")
    num_classes: int = setting(2, "classes of next.reward; 2: success or not", Limits(2, 1000))
    hidden_dim: int = setting(256, "width of the classifier's hidden layer", WIDTH)
    latent_dim: int = setting(256, "width of each camera's projection", WIDTH)
    image_embedding_pooling_dim: int = setting(
        8, "features of the spatial embedding, per channel of the image encoder", WIDTH
    )
    dropout_rate: float = shared("dropout", 0.1, SHARE)
    model_name: str = setting(
        "lerobot/resnet10",
        "ResNet10 image encoder: lerobot/resnet10, or a folder with config.json",
    )
    model_type: str = setting("cnn", "kind of the image encoder: cnn", Choices(("cnn",)))
    num_cameras: int = setting(2, "number of cameras", up_to(64))
    learning_rate: float = training_setting(1e-4, "learning rate of AdamW")
    weight_decay: float = training_setting(0.01, "weight decay of AdamW")
    grad_clip_norm: float = training_setting(1.0, "maximum gradient norm (gradient clipping)")
    normalization_mapping: dict[str, NormMode] = normalization(VISUAL=NormMode.MEAN_STD)
    train_projections: bool = field(
        default=False,
        metadata=run_flag(
            "train the cameras' spatial embeddings and projections too; LeRobot leaves them random"
        )
        | TRAINING_ONLY,
    )
    model_file: str | None = field(
        default=None,
        metadata=run_flag(
            "file or folder of model_name's weights (model.safetensors)",
            default_help="downloaded",
        )
        | TRAINING_ONLY
        | PRESENTATION
        | LOCAL_PATH,
    )
    kept_by_resume: ClassVar[tuple[str, ...]] = ("train_projections",)

    @property
    def features(self) -> dict[str, Feature]:
        """The features that must match an interface: the cameras."""
        return dict(self.input_features)

    @property
    def resnet10_sizes(self) -> ResNet10Sizes:
        """Sizes of the image encoder."""
        return resnet10_sizes(self.model_name)

    def with_features(self, inputs: Mapping[str, Feature], action_size: int) -> Self:
        """Return the config for the cameras among ``inputs``; its output is the reward."""
        cameras = {k: f for k, f in inputs.items() if f.kind is FeatureKind.VISUAL}
        reward = Feature(FeatureKind.REWARD, (1,), "float32")
        return replace(self, input_features=cameras, output_features={REWARD: reward})

    def processing(self, usual: UsualSteps) -> StepLists:
        """Return LeRobot's steps: one normaliser for the images, one for the reward."""
        from proctor.policies.lerobot.processors.processors import Identity

        images = replace(usual.normalize, features=self.input_features)  # type: ignore[call-arg]
        reward = replace(usual.normalize, features=self.output_features)  # type: ignore[call-arg]
        return (images, reward, usual.to_device), (usual.to_cpu, Identity())

    def samples(self) -> SampleWindows:
        """Return one observation and the reward of its step."""
        return SampleWindows(action_steps=range(0), reward_steps=range(1))

    def training_preset(self) -> TrainingPreset:
        """Return AdamW with a constant learning rate."""
        return constant_preset(
            "adamw",
            self.learning_rate,
            weight_decay=self.weight_decay,
            grad_clip_norm=self.grad_clip_norm,
        )

    def validate(self) -> None:
        """Check cameras, sizes and the number of classes."""
        check_fields(self)
        if len(self.cameras) != self.num_cameras:
            raise UsageError(
                f"num_cameras is {self.num_cameras}, but the inputs have {len(self.cameras)} "
                f"cameras: {', '.join(self.cameras) or 'none'} (set num_cameras, or choose cameras "
                "with --dataset.inputs)",
                code="policy.missing-input",
            )
        for key in self.cameras:
            check_camera(key, self.input_features[key])
            height, width = self.input_features[key].shape[:2]
            if self.resnet10_sizes.feature_map(height, width) != GRID:
                raise UsageError(
                    f"{key} is {height}x{width}: the reward classifier needs 97 to 128 pixels a "
                    "side (resize for training with --dataset.image_size=[128,128])",
                    code="policy.image-size-mismatch",
                )


def _refuse(config: RewardClassifierConfig, interface: Interface) -> NoReturn:
    raise UsageError(
        "reward_classifier judges images and does not act: use it with --eval.judge=CHECKPOINT",
        code="policy.reward-model",
    )


PLUGIN = CheckpointPlugin(
    config=RewardClassifierConfig,
    make=_refuse,
    summary="reward classifier of HIL-SERL; trained with --reward_model.type=reward_classifier",
    network="proctor.policies.reward_classifier.network:RewardClassifier",
    prefix="",
    signature_fields=frozenset({"num_cameras", "model_name"}),
)
