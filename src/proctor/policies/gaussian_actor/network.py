"""The Gaussian actor's networks, with the parameter names of LeRobot's checkpoints.

    cameras ─▶ image encoder (shared) ─▶ spatial embedding ─▶ Linear, LayerNorm, tanh ─┐
    environment state ─▶ Linear, LayerNorm, tanh ──────────────────────────────────────┼─▶ encoding
    state ─▶ Linear, LayerNorm, tanh ──────────────────────────────────────────────────┘
    encoding ─▶ MLP ─▶ mean, log s          action = tanh(mean + √s · noise)
    encoding ─▶ MLP ─▶ Q of every gripper command (gripper critic)

LeRobot passes s as the covariance of its distribution, so the standard deviation is √s. All modules
are pure functions: noise and dropout masks are arguments. All values are normalised; B is the
batch, D the width of the encoding, A the size of the continuous action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION, ENVIRONMENT_STATE, STATE
from proctor.policies.blocks.layers import SpatialEmbedding
from proctor.policies.blocks.resnet10 import ResNet10, load_resnet10
from proctor.policies.gaussian_actor.config import GaussianActorConfig, MlpSizes
from proctor.policies.runtime.network import Network, NoiseSpec, shared_names

DROPOUT = 0.1
"""Dropout probability of the spatial embeddings in training."""
NOISE = "noise"
_CONVOLUTIONS = ((7, 2), (5, 2), (3, 2), (3, 2))
"""Kernel and stride of the convolutional image encoder."""
_LARGEST_ACTION = 1 - 1e-6
"""Actions are clamped to it before atanh, which is infinite at 1."""


class MLP(nn.Module):
    """Linear layers, each followed by LayerNorm and SiLU."""

    def __init__(self, in_dim: int, sizes: MlpSizes) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        last = len(sizes.hidden_dims) - 1
        for i, width in enumerate(sizes.hidden_dims):
            layers.append(nn.Linear(in_dim, width))
            if i < last or sizes.activate_final:
                replaced = sizes.final_activation if i == last else None
                activation = nn.SiLU() if replaced is None else getattr(nn, replaced)()
                layers += [nn.LayerNorm(width), activation]
            in_dim = width
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, hidden_dims[-1]] of ``x`` [B, in_dim]."""
        y: Tensor = self.net(x)
        return y


class ImageEncoder(nn.Module):
    """The image encoder of all cameras: four convolutions, or a ResNet10."""

    def __init__(self, config: GaussianActorConfig) -> None:
        super().__init__()
        sizes = config.resnet10_sizes
        height, width = config.input_features[config.cameras[0]].shape[:2]
        self.image_enc_layers: nn.Module
        if sizes is not None:
            self.image_enc_layers = ResNet10(sizes)
            self.out_channels = sizes.out_channels
            self.feature_map = sizes.feature_map(height, width)
            return
        layers: list[nn.Module] = []
        channels, self.out_channels = 3, config.image_encoder_hidden_dim
        for kernel, stride in _CONVOLUTIONS:
            layers += [nn.Conv2d(channels, self.out_channels, kernel, stride), nn.ReLU()]
            channels = self.out_channels
            height, width = ((n - kernel) // stride + 1 for n in (height, width))
        self.image_enc_layers = nn.Sequential(*layers)
        self.feature_map = height, width

    def forward(self, images: Tensor) -> Tensor:
        """Return feature maps [B, C, h, w] of ``images`` [B, 3, H, W]."""
        features: Tensor = self.image_enc_layers(images)
        return features


class ObservationEncoder(nn.Module):
    """Encodes cameras, environment state and state; the parts are concatenated in this order."""

    def __init__(self, config: GaussianActorConfig) -> None:
        super().__init__()
        self.cameras = tuple(config.cameras)
        self.frozen = config.freeze_vision_encoder
        width = config.latent_dim
        if self.cameras:
            self.image_encoder = ImageEncoder(config)
            self.image_encoder.requires_grad_(not self.frozen)
            channels, pooled = self.image_encoder.out_channels, config.image_embedding_pooling_dim
            self.spatial_embeddings = nn.ModuleDict(
                {
                    module_name(key): SpatialEmbedding(
                        channels, *self.image_encoder.feature_map, pooled
                    )
                    for key in self.cameras
                }
            )
            self.embedding_dim = channels * pooled
            self.post_encoders = nn.ModuleDict(
                {
                    # The first place is dropout's in LeRobot; here its mask is an argument.
                    module_name(key): nn.Sequential(
                        nn.Identity(), *_projection(self.embedding_dim, width)
                    )
                    for key in self.cameras
                }
            )
        self.vectors: dict[str, str] = {}
        if config.env_dim is not None:
            self.env_encoder = nn.Sequential(*_projection(config.env_dim, width))
            self.vectors[ENVIRONMENT_STATE] = "env_encoder"
        if config.state_dim is not None:
            self.state_encoder = nn.Sequential(*_projection(config.state_dim, width))
            self.vectors[STATE] = "state_encoder"
        self.output_dim = (len(self.cameras) + len(self.vectors)) * width

    def image_features(self, observation: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the feature map of each camera; without gradients if the encoder is frozen."""
        if not self.cameras:
            return {}
        images = torch.cat([observation[key] for key in self.cameras])
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            maps = self.image_encoder(images).chunk(len(self.cameras))
        return dict(zip(self.cameras, maps, strict=True))

    def encode_images(
        self, features: Mapping[str, Tensor], keep: Mapping[str, Tensor] | None = None
    ) -> list[Tensor]:
        """Return the encoding [B, latent_dim] of each camera's feature map.

        ``keep`` holds the dropout mask [B, embedding_dim] of each camera: 0, or 1 / (1 - p). None:
        no dropout.
        """
        parts = []
        for key in self.cameras:
            embedding = self.spatial_embeddings[module_name(key)](features[key])
            if keep is not None:
                embedding = embedding * keep[key]
            parts.append(self.post_encoders[module_name(key)](embedding))
        return parts

    def encode_states(self, observation: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the encodings [B, latent_dim] of environment state and state."""
        return [getattr(self, name)(observation[key]) for key, name in self.vectors.items()]

    def forward(
        self,
        observation: Mapping[str, Tensor],
        features: Mapping[str, Tensor] | None = None,
        keep: Mapping[str, Tensor] | None = None,
        *,
        detach_images: bool = False,
    ) -> Tensor:
        """Return the encoding [B, output_dim].

        ``features`` are the result of ``image_features``, computed once for several passes.
        ``detach_images`` stops gradients to the image part: a shared encoder learns from critics.
        """
        parts: list[Tensor] = []
        if self.cameras:
            parts = self.encode_images(features or self.image_features(observation), keep)
            parts = [part.detach() for part in parts] if detach_images else parts
        return torch.cat([*parts, *self.encode_states(observation)], dim=-1)


def module_name(key: str) -> str:
    """Return a feature's name in parameter names, which have no dots."""
    return key.replace(".", "_")


def _projection(in_dim: int, out_dim: int) -> list[nn.Module]:
    return [nn.Linear(in_dim, out_dim), nn.LayerNorm(out_dim), nn.Tanh()]


class Moments(NamedTuple):
    """A Gaussian before tanh."""

    mean: Tensor  # [B, A]
    variance: Tensor  # [B, A], LeRobot's "std"


class Actor(nn.Module):
    """Maps an observation to a tanh-squashed Gaussian over the continuous action."""

    def __init__(self, encoder: ObservationEncoder, config: GaussianActorConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.encoder_is_shared = config.shared_encoder
        sizes = config.actor_network
        self.network = MLP(encoder.output_dim, sizes)
        self.mean_layer = nn.Linear(sizes.hidden_dims[-1], config.action_dim)
        self.std_layer = nn.Linear(sizes.hidden_dims[-1], config.action_dim)
        bound = config.gaussian.init_final
        for layer in (self.mean_layer, self.std_layer):
            nn.init.uniform_(layer.weight, -bound, bound)
            nn.init.uniform_(layer.bias, -bound, bound)
        self.limits = config.gaussian.std_min, config.gaussian.std_max

    def moments(self, encoding: Tensor) -> Moments:
        """Return the Gaussian of an encoding [B, D]."""
        hidden = self.network(encoding)
        variance = self.std_layer(hidden).exp().clamp(*self.limits)
        return Moments(self.mean_layer(hidden), variance)

    def forward(
        self,
        observation: Mapping[str, Tensor],
        features: Mapping[str, Tensor] | None = None,
        keep: Mapping[str, Tensor] | None = None,
    ) -> Moments:
        """Return the Gaussian of an observation; a shared encoder's image part is detached."""
        encoding = self.encoder(observation, features, keep, detach_images=self.encoder_is_shared)
        return self.moments(encoding)


def sample(moments: Moments, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions [B, A] for standard normal ``noise`` [B, A], and their log-probability [B]."""
    x = moments.mean + moments.variance.sqrt() * noise
    return x.tanh(), _log_prob(x, noise, moments.variance)


def log_prob(moments: Moments, actions: Tensor) -> Tensor:
    """Return the log-probability [B] of ``actions`` [B, A] in [-1, 1]."""
    x = actions.clamp(-_LARGEST_ACTION, _LARGEST_ACTION).atanh()
    noise = (x - moments.mean) / moments.variance.sqrt()
    return _log_prob(x, noise, moments.variance)


def _log_prob(x: Tensor, noise: Tensor, variance: Tensor) -> Tensor:
    normal = -0.5 * (noise.square() + variance.log() + math.log(2 * math.pi))
    squash = 2 * (math.log(2) - x - F.softplus(-2 * x))  # log of tanh's derivative
    return (normal - squash).sum(-1)


class DiscreteCritic(nn.Module):
    """The gripper critic: the value of every gripper command."""

    def __init__(self, encoder: ObservationEncoder, config: GaussianActorConfig) -> None:
        super().__init__()
        assert config.num_discrete_actions is not None
        self.encoder = encoder
        sizes = config.discrete_critic_network
        self.net = MLP(encoder.output_dim, sizes)
        self.output_layer = nn.Linear(sizes.hidden_dims[-1], config.num_discrete_actions)
        nn.init.orthogonal_(self.output_layer.weight)

    def head(self, encoding: Tensor) -> Tensor:
        """Return the values [B, num_discrete_actions] of an encoding [B, D]."""
        values: Tensor = self.output_layer(self.net(encoding))
        return values

    def forward(
        self,
        observation: Mapping[str, Tensor],
        features: Mapping[str, Tensor] | None = None,
        keep: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Return the values [B, num_discrete_actions] of an observation."""
        return self.head(self.encoder(observation, features, keep))


class GaussianActorNetwork(Network):
    """Encoders, actor and gripper critic; attribute names are those of LeRobot's checkpoints."""

    takes_history = False

    def __init__(self, config: GaussianActorConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder_critic = ObservationEncoder(config)
        self.encoder_actor = (
            self.encoder_critic if config.shared_encoder else ObservationEncoder(config)
        )
        self.actor = Actor(self.encoder_actor, config)
        self.discrete_critic: DiscreteCritic | None = None
        if config.has_gripper:
            self.discrete_critic = DiscreteCritic(self.encoder_critic, config)
            self.n_raw_actions = 1
        if config.sample_actions:
            self.draws = {NOISE: (NoiseSpec.NORMAL, (config.action_dim,))}
        self.tied = shared_names(self)

    def load_pretrained(self) -> None:
        """Load the published weights of a ResNet10 image encoder."""
        name = self.config.vision_encoder_name
        encoders = {id(encoder): encoder for encoder in (self.encoder_critic, self.encoder_actor)}
        for encoder in encoders.values():
            if name is None or not encoder.cameras:
                return
            layers = encoder.image_encoder.image_enc_layers
            assert isinstance(layers, ResNet10)
            load_resnet10(
                layers, name, self.config.vision_encoder_file, "--policy.vision_encoder_file"
            )

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return one action [B, 1, A]; the gripper command is its last number."""
        features = self.encoder_actor.image_features(inputs)
        moments = self.actor(inputs, features)
        noise = draws.get(NOISE)
        action = moments.mean.tanh() if noise is None else sample(moments, noise)[0]
        if self.discrete_critic is not None:
            shared = features if self.config.shared_encoder else None
            values = self.discrete_critic(inputs, shared)
            action = torch.cat([action, values.argmax(-1, keepdim=True).to(action.dtype)], dim=-1)
        return action[:, None]

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the negative log-likelihood of the demonstrated actions: behaviour cloning."""
        encoding = self.encoder_actor(batch)
        loss = -log_prob(self.actor.moments(encoding), batch[ACTION][:, 0]).mean()
        return loss, {"nll_loss": loss.detach()}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the parameters that are not frozen."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def compiled_modules(self) -> list[nn.Module]:
        """Return encoder and actor."""
        return [self.encoder_actor, self.actor.network]
