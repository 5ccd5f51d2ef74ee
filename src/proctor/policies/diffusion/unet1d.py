"""The 1-D convolutional U-Net that denoises action sequences in Diffusion Policy.

Actions are a signal over time with one channel per action dimension. Each level has two residual
blocks. Down levels halve the length; up levels get the skip connection of their depth. FiLM
conditioning (a scale and a bias per channel) adds timestep and observations to every block.
Attribute names are those of LeRobot's checkpoints.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from proctor.policies.blocks.layers import sinusoidal_embedding
from proctor.policies.diffusion.config import DiffusionConfig


class ConvBlock(nn.Module):
    """1-D convolution, GroupNorm, Mish."""

    def __init__(self, channels_in: int, channels: int, kernel_size: int, n_groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv1d(channels_in, channels, kernel_size, padding=kernel_size // 2),
            nn.GroupNorm(n_groups, channels),
            nn.Mish(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, channels_in, T] to [B, channels, T]."""
        out: Tensor = self.block(x)
        return out


class ResidualBlock(nn.Module):
    """Two convolution blocks with FiLM conditioning between them and a residual connection."""

    def __init__(
        self, channels_in: int, channels: int, cond_dim: int, config: DiffusionConfig
    ) -> None:
        super().__init__()
        shape = (config.kernel_size, config.n_groups)
        self.scales = config.use_film_scale_modulation
        self.conv1 = ConvBlock(channels_in, channels, *shape)
        self.cond_encoder = nn.Sequential(
            nn.Mish(), nn.Linear(cond_dim, channels * (2 if self.scales else 1))
        )
        self.conv2 = ConvBlock(channels, channels, *shape)
        same = channels_in == channels
        self.residual_conv = nn.Identity() if same else nn.Conv1d(channels_in, channels, 1)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """Map [B, channels_in, T] to [B, channels, T] under ``cond`` [B, cond_dim]."""
        out = self.conv1(x)
        film = self.cond_encoder(cond)[..., None]
        if self.scales:
            scale, bias = film.chunk(2, dim=1)
            out = scale * out + bias  # not 1 + scale: as in LeRobot's checkpoints
        else:
            out = out + film
        summed: Tensor = self.conv2(out) + self.residual_conv(x)
        return summed


class Level(nn.ModuleList):
    """Two residual blocks and a resampling layer, under the names 0, 1 and 2."""

    def __init__(
        self, channels: tuple[int, int], resample: nn.Module, cond_dim: int, config: DiffusionConfig
    ) -> None:
        before, after = channels
        super().__init__(
            [
                ResidualBlock(before, after, cond_dim, config),
                ResidualBlock(after, after, cond_dim, config),
                resample,
            ]
        )

    def blocks(self, x: Tensor, cond: Tensor) -> Tensor:
        """Run the two residual blocks."""
        out: Tensor = self[1](self[0](x, cond), cond)
        return out

    def resample(self, x: Tensor) -> Tensor:
        """Halve, double or keep the sequence length."""
        out: Tensor = self[2](x)
        return out


class UNet1d(nn.Module):
    """Predicts the noise in a noisy action sequence, or the clean sequence."""

    def __init__(self, config: DiffusionConfig, global_cond_dim: int) -> None:
        super().__init__()
        self.time_width = width = config.diffusion_step_embed_dim
        self.diffusion_step_encoder = nn.Sequential(
            nn.Identity(),  # in place of LeRobot's time embedding, which has no weights
            nn.Linear(width, width * 4),
            nn.Mish(),
            nn.Linear(width * 4, width),
        )
        cond_dim = width + global_cond_dim
        dims = config.down_dims
        halve = [*(nn.Conv1d(c, c, 3, stride=2, padding=1) for c in dims[:-1]), nn.Identity()]
        self.down_modules = nn.ModuleList(
            Level(channels, down, cond_dim, config)
            for channels, down in zip(pairwise((config.action_dim, *dims)), halve, strict=True)
        )
        self.mid_modules = nn.ModuleList(
            ResidualBlock(dims[-1], dims[-1], cond_dim, config) for _ in range(2)
        )
        self.up_modules = nn.ModuleList(
            Level(
                (2 * below, c), nn.ConvTranspose1d(c, c, 4, stride=2, padding=1), cond_dim, config
            )
            for below, c in pairwise(reversed(dims))
        )
        # Always 8 groups, whatever n_groups is, as in LeRobot's checkpoints.
        self.final_conv = nn.Sequential(
            ConvBlock(dims[0], dims[0], config.kernel_size, 8),
            nn.Conv1d(dims[0], config.action_dim, 1),
        )

    def forward(self, actions: Tensor, timesteps: Tensor, global_cond: Tensor) -> Tensor:
        """Return the prediction [B, T, A] for noisy actions [B, T, A] at timesteps [B]."""
        embedded = sinusoidal_embedding(timesteps, self.time_width).to(actions.dtype)
        step = self.diffusion_step_encoder(embedded)
        cond = torch.cat([step, global_cond], dim=-1)
        x = actions.transpose(1, 2)
        skips = []
        for level in self.down_modules:
            assert isinstance(level, Level)
            x = level.blocks(x, cond)
            skips.append(x)
            x = level.resample(x)
        for block in self.mid_modules:
            x = block(x, cond)
        for level in self.up_modules:  # the shallowest skip is unused, as in LeRobot
            assert isinstance(level, Level)
            x = level.resample(level.blocks(torch.cat([x, skips.pop()], dim=1), cond))
        out: Tensor = self.final_conv(x).transpose(1, 2)
        return out
