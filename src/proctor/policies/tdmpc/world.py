"""TD-MPC's latent world model: encoder, dynamics, reward, policy and value functions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from proctor.features import ENVIRONMENT_STATE, STATE
from proctor.policies.blocks.layers import Layers
from proctor.policies.tdmpc.config import TdMpcConfig

_KERNELS = (7, 5, 3, 3)


class WorldModel(nn.Module):
    """Maps latent states z [..., L] and actions a [..., A]; attribute names are LeRobot's."""

    def __init__(self, config: TdMpcConfig) -> None:
        super().__init__()
        latent, width = config.latent_dim, config.mlp_dim
        both = latent + config.action_dim
        self._encoder = LatentEncoder(config)
        self._dynamics = Layers(*_mlp(both, width, latent), nn.LayerNorm(latent), nn.Sigmoid())
        self._reward = Layers(*_mlp(both, width, 1))
        self._pi = Layers(*_mlp(latent, width, config.action_dim))
        self._Qs = nn.ModuleList(_value_mlp(both, width) for _ in range(config.q_ensemble_size))
        self._V = _value_mlp(latent, width)
        self._init_weights()

    def _init_weights(self) -> None:
        """Initialise orthogonally; reward and Q-functions start at 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
                gain = 2**0.5 if isinstance(module, nn.Conv2d) else 1.0
                nn.init.orthogonal_(module.weight, gain)
                nn.init.zeros_(module.bias)
        for last in (self._reward[-1], *(q[-1] for q in self._Qs)):  # type: ignore[index]
            nn.init.zeros_(last.weight)

    def encode(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the latent states of observations [..., (C, H, W)]."""
        latent: Tensor = self._encoder(inputs)
        return latent

    def step(self, z: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next latent states, and rewards [...]."""
        x = torch.cat([z, a], -1)
        return self._dynamics(x), self._reward(x).squeeze(-1)

    def next_latent(self, z: Tensor, a: Tensor) -> Tensor:
        """Return the next latent states."""
        latent: Tensor = self._dynamics(torch.cat([z, a], -1))
        return latent

    def act(self, z: Tensor) -> Tensor:
        """Return the learned policy's actions."""
        return torch.tanh(self._pi(z))

    def values(self, z: Tensor, a: Tensor) -> Tensor:
        """Return the Q-values of the ensemble, [E, ...]."""
        x = torch.cat([z, a], -1)
        return torch.stack([q(x).squeeze(-1) for q in self._Qs])

    def value(self, z: Tensor) -> Tensor:
        """Return the values of latent states, [...]."""
        value: Tensor = self._V(z).squeeze(-1)
        return value

    def compiled_modules(self) -> list[nn.Module]:
        """Return the modules that planning runs at every step."""
        return [self._dynamics, self._reward, self._pi, *self._Qs]


class LatentEncoder(nn.Module):
    """Encodes observations: the mean of the latents of image, state and environment state."""

    def __init__(self, config: TdMpcConfig) -> None:
        super().__init__()
        self.camera = next(iter(config.cameras), None)
        if self.camera is not None:
            side = config.input_features[self.camera].shape[0]
            self.image_enc_layers = _image_encoder(config, side)
        if config.state_dim is not None:
            self.state_enc_layers = _vector_encoder(config, config.state_dim)
        if config.env_dim is not None:
            self.env_state_enc_layers = _vector_encoder(config, config.env_dim)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Map observations [..., (C, H, W)] to latent states [..., L]."""
        latents = []
        if self.camera is not None:
            images = inputs[self.camera]
            leading = images.shape[:-3]
            latents.append(self.image_enc_layers(images.flatten(0, -4)).unflatten(0, leading))
        if hasattr(self, "env_state_enc_layers"):
            latents.append(self.env_state_enc_layers(inputs[ENVIRONMENT_STATE]))
        latents.append(self.state_enc_layers(inputs[STATE]))
        return torch.stack(latents).mean(0)


def _image_encoder(config: TdMpcConfig, side: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels, width = 3, config.image_encoder_hidden_dim
    for kernel in _KERNELS:
        layers += [nn.Conv2d(channels, width, kernel, stride=2), nn.ReLU()]
        channels, side = width, (side - kernel) // 2 + 1
    layers += [nn.Flatten(), nn.Linear(width * side * side, config.latent_dim)]
    return nn.Sequential(*layers, nn.LayerNorm(config.latent_dim), nn.Sigmoid())


def _vector_encoder(config: TdMpcConfig, size: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(size, config.state_encoder_hidden_dim),
        nn.ELU(),
        nn.Linear(config.state_encoder_hidden_dim, config.latent_dim),
        nn.LayerNorm(config.latent_dim),
        nn.Sigmoid(),
    )


def _mlp(size: int, width: int, out: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for entering in (size, width):
        layers += [nn.Linear(entering, width), nn.LayerNorm(width), nn.Mish()]
    return [*layers, nn.Linear(width, out)]


def _value_mlp(size: int, width: int) -> Layers:
    return Layers(
        nn.Linear(size, width),
        nn.LayerNorm(width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.ELU(),
        nn.Linear(width, 1),
    )
