"""Config and plug-in of the Gaussian actor, which SAC trains (HIL-SERL, Luo et al., 2024).

The actor maps one observation to a tanh-squashed Gaussian over one action. A gripper is a discrete
action: the gripper critic chooses among ``num_discrete_actions``. Critics and temperature belong to
the algorithm. The network is in network.py. No torch here: `--help` reads configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import msgspec

from proctor.errors import UsageError, did_you_mean
from proctor.features import ACTION, IMAGE, STATE, Feature, NormMode
from proctor.fingerprint import EVALUATION_ONLY, LOCAL_PATH, PRESENTATION, TRAINING_ONLY
from proctor.policies.blocks.encoder_sizes import ResNet10Sizes, Width, resnet10_sizes
from proctor.policies.lerobot.config.config import (
    NOT_A_FLAG,
    CheckpointConfig,
    CheckpointPlugin,
    run_flag,
    setting,
    training_field,
    training_setting,
    unused,
)
from proctor.policies.lerobot.config.presets import SampleWindows, TrainingPreset, constant_preset
from proctor.policies.lerobot.config.shared_fields import normalization, shared
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import (
    MOST_LAYERS,
    WIDTH,
    Choices,
    check_one_observation,
    check_same_shape,
    up_to,
)
from proctor.settings import setting as bounded

SMALLEST_IMAGE = 39
"""Pixels of a side: four unpadded convolutions reduce it to one."""
_MOST_DISCRETE = 10_000
ACTIVATIONS = (
    "CELU", "ELU", "GELU", "Hardswish", "Hardtanh", "Identity", "LeakyReLU", "Mish", "ReLU",
    "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softsign", "Tanh",
)  # fmt: skip
"""Activations that may end an MLP, by torch.nn's class names."""
IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@dataclass(frozen=True)
class MlpSizes:
    """Sizes of an MLP: ``actor_network_kwargs`` and ``discrete_critic_network_kwargs``."""

    hidden_dims: list[Width] = field(default_factory=lambda: [256, 256])
    activate_final: bool = True
    """Whether the last hidden layer is normalised and activated too."""
    final_activation: str | None = None
    """Activation of the last hidden layer, by torch.nn's class name; None: SiLU."""


@dataclass(frozen=True)
class GaussianSettings:
    """Settings of the Gaussian: ``policy_kwargs``."""

    use_tanh_squash: bool = True
    """LeRobot never reads it: actions are always squashed."""
    std_min: float = 1e-5
    std_max: float = 10.0
    """Bounds of the variance, which LeRobot calls std."""
    init_final: float = 0.05
    """Range of the uniform initialisation of the output layers."""


@dataclass(frozen=True)
class ActorLearnerSettings:
    """Connection of an actor to its learner: ``actor_learner_config``."""

    learner_host: str = "127.0.0.1"
    learner_port: int = 50051
    policy_parameters_push_frequency: int = 4
    """Seconds between two transfers of weights to the actors."""
    queue_get_timeout: float = 2.0
    """Seconds that a stream waits for data before it checks for the end."""


@dataclass(frozen=True)
class ConcurrencySettings:
    """LeRobot's choice of threads or processes, which no run here uses: ``concurrency``."""

    actor: str = "threads"
    learner: str = "threads"
    multiprocessing_context: str | None = "spawn"


_MAPS: dict[str, type[Any]] = {
    "actor_learner_config": ActorLearnerSettings,
    "concurrency": ConcurrencySettings,
    "actor_network_kwargs": MlpSizes,
    "policy_kwargs": GaussianSettings,
    "discrete_critic_network_kwargs": MlpSizes,
}
"""Fields of config.json that are maps, and the records that they hold."""
_NOT_WRITTEN = {"actor_network_kwargs": ("final_activation",)}
"""Entries of the records that LeRobot's map does not have."""
_NETWORK_HELP = "sizes of the {}, as {{hidden_dims: [256,256], activate_final: true}}"


def _map(name: str, text: str, *, training: bool = False, **metadata: Any) -> Any:
    usual = "LeRobot's"
    declare = training_field(text, usual) if training else {"help": text, "default_help": usual}
    return field(default_factory=lambda: _completed(name, {}), metadata=declare | metadata)


def _completed(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return a map of config.json with the defaults of missing entries."""
    whole: dict[str, Any] = msgspec.to_builtins(_read(name, given))
    return {key: value for key, value in whole.items() if key not in _NOT_WRITTEN.get(name, ())}


def _read(name: str, given: dict[str, Any]) -> Any:
    known = [f.name for f in fields(_MAPS[name]) if f.name not in _NOT_WRITTEN.get(name, ())]
    for key in given:
        if key not in known:
            raise UsageError(
                f"{name} has no {key!r}{did_you_mean(key, known)} (choose from: "
                f"{', '.join(known)})",
                code="policy.unknown-choice",
            )
    try:
        # msgspec leaves defaults on the class; replace() copies them to the record, to be written.
        return replace(msgspec.convert(given, _MAPS[name], strict=False))
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}", code="policy.invalid-value") from None


def _default_stats() -> dict[str, dict[str, list[float]]]:
    return {
        IMAGE: {"mean": list(IMAGENET_MEAN), "std": list(IMAGENET_STD)},
        STATE: {"min": [0.0, 0.0], "max": [1.0, 1.0]},
        ACTION: {"min": [0.0, 0.0, 0.0], "max": [1.0, 1.0, 1.0]},
    }


@dataclass
class GaussianActorConfig(CheckpointConfig):
    """The Gaussian actor's fields, in LeRobot's order and with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations and actions": "num_discrete_actions sample_actions",
        "Images": "vision_encoder_name vision_encoder_file",
    }

    type: str = "gaussian_actor"
    device: str | None = field(default="cpu", metadata=PRESENTATION)
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.MEAN_STD,
        STATE=NormMode.MIN_MAX,
        ENV=NormMode.MIN_MAX,
        ACTION=NormMode.MIN_MAX,
    )
    dataset_stats: dict[str, dict[str, list[float]]] | None = field(
        default_factory=_default_stats,
        metadata=training_field(
            "statistics of observations and action for online training, as "
            "{action: {min: [-1,-1], max: [1,1]}}",
            default_help="LeRobot's example values",
        ),
    )
    storage_device: str = training_setting("cpu", "device of the replay buffers")
    vision_encoder_name: str | None = setting(
        None,
        "ResNet10 image encoder: lerobot/resnet10, or a folder with config.json",
        default_help="four convolutions",
    )
    freeze_vision_encoder: bool = shared("freeze_vision_encoder", True)
    image_encoder_hidden_dim: int = setting(
        32, "channels of the convolutional image encoder", WIDTH
    )
    shared_encoder: bool = setting(True, "use one observation encoder for actor and critics")
    num_discrete_actions: int | None = setting(
        None,
        "gripper commands, chosen by a critic: the last number of an action",
        up_to(_MOST_DISCRETE),
        default_help="no gripper critic",
    )
    image_embedding_pooling_dim: int = setting(
        8, "features of the spatial embedding, per channel of the image encoder", WIDTH
    )
    state_encoder_hidden_dim: int = training_setting(
        256, "a field of LeRobot's config.json that LeRobot does not use"
    )
    latent_dim: int = setting(256, "width of the encoding of each camera and state", WIDTH)
    online_steps: int = bounded(
        1_000_000, "environment steps of online training", TRAINING_ONLY, least=1, most=10**9
    )
    online_buffer_capacity: int = bounded(
        100_000, "transitions in the replay buffer of the actors", TRAINING_ONLY, least=1
    )
    offline_buffer_capacity: int = bounded(
        100_000,
        "transitions in the replay buffer of demonstrations and interventions",
        TRAINING_ONLY,
        least=1,
    )
    async_prefetch: bool = unused(False)
    online_step_before_learning: int = bounded(
        100, "transitions collected before the first update", TRAINING_ONLY, least=1
    )
    actor_learner_config: dict[str, Any] = _map(
        "actor_learner_config",
        "connection of actors to the learner, as {learner_host: 127.0.0.1, learner_port: 50051}",
        training=True,
    )
    concurrency: dict[str, Any] = _map("concurrency", "", **NOT_A_FLAG)
    actor_network_kwargs: dict[str, Any] = _map(
        "actor_network_kwargs", _NETWORK_HELP.format("actor's MLP")
    )
    policy_kwargs: dict[str, Any] = _map(
        "policy_kwargs", "bounds of the Gaussian's variance, as {std_min: 1e-5, std_max: 10}"
    )
    discrete_critic_network_kwargs: dict[str, Any] = _map(
        "discrete_critic_network_kwargs", _NETWORK_HELP.format("gripper critic's MLP")
    )
    sample_actions: bool = field(
        default=False,
        metadata=run_flag("sample actions as LeRobot does; false: execute the Gaussian's mode")
        | EVALUATION_ONLY,
    )
    vision_encoder_file: str | None = field(
        default=None,
        metadata=run_flag(
            "file or folder of vision_encoder_name's weights (model.safetensors)",
            default_help="downloaded",
        )
        | TRAINING_ONLY
        | PRESENTATION
        | LOCAL_PATH,
    )

    def __post_init__(self) -> None:
        """Complete the maps with their defaults, as LeRobot writes them."""
        for name in _MAPS:
            setattr(self, name, _completed(name, getattr(self, name)))

    @property
    def actor_learner(self) -> ActorLearnerSettings:
        """The connection of actors to the learner."""
        settings: ActorLearnerSettings = _read("actor_learner_config", self.actor_learner_config)
        return settings

    @property
    def actor_network(self) -> MlpSizes:
        """Sizes of the actor's MLP."""
        sizes: MlpSizes = _read("actor_network_kwargs", self.actor_network_kwargs)
        return sizes

    @property
    def discrete_critic_network(self) -> MlpSizes:
        """Sizes of the gripper critic's MLP."""
        given = self.discrete_critic_network_kwargs
        sizes: MlpSizes = _read("discrete_critic_network_kwargs", given)
        return sizes

    @property
    def gaussian(self) -> GaussianSettings:
        """Bounds of the variance and initialisation of the output layers."""
        settings: GaussianSettings = _read("policy_kwargs", self.policy_kwargs)
        return settings

    @property
    def replan_steps(self) -> int:
        """Actions executed before the next inference: one."""
        return 1

    @property
    def has_gripper(self) -> bool:
        """Whether an action ends with a gripper command of the gripper critic."""
        return self.num_discrete_actions is not None

    @property
    def features(self) -> dict[str, Feature]:
        """The features that must match an interface: the action has the gripper command too."""
        action = self.output_features[ACTION]
        size = action.shape[0] + self.has_gripper
        return {**self.input_features, ACTION: replace(action, shape=(size,))}

    def with_features(self, inputs: Mapping[str, Feature], action_size: int) -> Self:
        """Return the config of a new network, whose Gaussian leaves the gripper command out."""
        return super().with_features(inputs, action_size - self.has_gripper)

    @property
    def resnet10_sizes(self) -> ResNet10Sizes | None:
        """Sizes of the ResNet10 image encoder; None: the convolutional one."""
        name = self.vision_encoder_name
        return None if name is None else resnet10_sizes(name)

    def samples(self) -> SampleWindows:
        """Return one observation and its action, for behaviour cloning."""
        if self.has_gripper:
            raise UsageError(
                "a gaussian_actor with num_discrete_actions is trained online: proctor "
                "train-online",
                code="policy.not-trainable",
            )
        return SampleWindows(action_steps=range(1))

    def training_preset(self) -> TrainingPreset:
        """Return Adam with the learning rate that SAC uses for the actor."""
        return constant_preset("adam", 3e-4, grad_clip_norm=40.0)

    def validate(self) -> None:
        """Check the inputs, the sizes and the bounds of the variance too."""
        super().validate()
        for network in (self.actor_network, self.discrete_critic_network):
            _check_network(network)
        self._validate_inputs()
        least, most = self.gaussian.std_min, self.gaussian.std_max
        if not 0 < least <= most:
            raise UsageError(
                f"policy_kwargs: std_min is {least} and std_max {most}, expected 0 < std_min <= "
                "std_max",
                code="policy.out-of-range",
            )

    def _validate_inputs(self) -> None:
        check_one_observation(self)
        if self.state_dim is None and not self.cameras:
            raise UsageError(
                f"gaussian_actor needs {STATE} or a camera as input", code="policy.missing-input"
            )
        check_same_shape("gaussian_actor", self.input_features, self.cameras)
        for key in self.cameras if self.vision_encoder_name is None else ():
            height, width = self.input_features[key].shape[:2]
            if min(height, width) < SMALLEST_IMAGE:
                raise UsageError(
                    f"{key} is {height}x{width}: the convolutional image encoder needs at least "
                    f"{SMALLEST_IMAGE} pixels",
                    code="policy.image-size-mismatch",
                )


def _check_network(network: MlpSizes) -> None:
    """Refuse an MLP without layers or with too many, or an unknown activation."""
    up_to(MOST_LAYERS).check("the number of hidden_dims", len(network.hidden_dims))
    if network.final_activation is not None:
        Choices(ACTIVATIONS).check("final_activation", network.final_activation)


PLUGIN = CheckpointPlugin(
    config=GaussianActorConfig,
    summary="Gaussian actor of SAC and HIL-SERL, untrained (trained: --policy.path)",
    network="proctor.policies.gaussian_actor.network:GaussianActorNetwork",
    prefix="",
    signature_fields=frozenset({"actor_learner_config", "online_buffer_capacity"}),
    make=make_fresh,
)
