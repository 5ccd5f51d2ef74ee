"""DaViT (Ding et al., 2022), Florence-2's image encoder, and its projector.

    images ─▶  4 x [patches ─▶ n x (spatial block: window attention, channel block: channel
                                    attention)]
             ─▶ + positions ─▶ [mean, every token] ─▶ tokens of the language model

Attribute names are those of Florence-2 in transformers, as in checkpoints.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.xvla.florence_config import DavitSizes


class DavitEncoder(nn.Module):
    """Images [B, 3, H, W] to a feature map [B, C, h, w]."""

    def __init__(self, config: DavitSizes) -> None:
        super().__init__()
        n_blocks = 2 * sum(config.depths)
        rates = iter(torch.linspace(0, config.drop_path_rate, n_blocks, device="cpu").tolist())
        self.convs = nn.ModuleList(
            PatchEmbedding(config, stage) for stage in range(len(config.depths))
        )
        self.blocks = nn.ModuleList(
            nn.ModuleList(DualBlock(config, stage, next(rates), next(rates)) for _ in range(depth))
            for stage, depth in enumerate(config.depths)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map."""
        x = images
        for patches, stage in zip(self.convs, self.blocks, strict=True):
            x = patches(x)
            for block in stage.children():
                x = block(x)
        return x


class PatchEmbedding(nn.Module):
    """A strided convolution with a LayerNorm before or after it."""

    def __init__(self, config: DavitSizes, stage: int) -> None:
        super().__init__()
        before = config.embed_dim[stage - 1] if stage else config.in_channels
        width = config.embed_dim[stage]
        self.first = config.patch_prenorm[stage]
        self.conv = nn.Conv2d(
            before,
            width,
            config.patch_size[stage],
            stride=config.patch_stride[stage],
            padding=config.patch_padding[stage],
        )
        self.norm = nn.LayerNorm(before if self.first else width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, width, H / stride, W / stride]."""
        if self.first:
            x = self._normed(x)
        x = self.conv(x)
        return x if self.first else self._normed(x)

    def _normed(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return out


class DualBlock(nn.Module):
    """Window attention, then channel attention."""

    def __init__(self, config: DavitSizes, stage: int, drop_spatial: float, drop_channel: float):
        super().__init__()
        self.spatial_block = SpatialBlock(config, stage, drop_spatial)
        self.channel_block = ChannelBlock(config, stage, drop_channel)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the same shape."""
        out: Tensor = self.channel_block(self.spatial_block(x))
        return out


class _Block(nn.Module):
    """Depthwise convolution, attention, depthwise convolution and MLP, all residual."""

    def __init__(self, config: DavitSizes, stage: int, drop: float) -> None:
        super().__init__()
        width = config.embed_dim[stage]
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm1 = nn.LayerNorm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm2 = nn.LayerNorm(width)
        self.ffn = DavitMlp(width, int(width * config.mlp_ratio))
        self.drop_path = DropPath(drop)

    def attend(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """Return the attention output of tokens [B, height x width, C]."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the same shape."""
        size = x.shape[-2:]
        tokens = (x + self.conv1(x)).flatten(2).transpose(1, 2)
        tokens = tokens + self.drop_path(self.attend(self.norm1(tokens), *size))
        x = tokens.transpose(1, 2).unflatten(2, size)
        tokens = (x + self.conv2(x)).flatten(2).transpose(1, 2)
        tokens = tokens + self.drop_path(self.ffn(self.norm2(tokens)))
        out: Tensor = tokens.transpose(1, 2).unflatten(2, size)
        return out


class SpatialBlock(_Block):
    """Block with window attention: pixels of a window attend to each other."""

    def __init__(self, config: DavitSizes, stage: int, drop: float) -> None:
        super().__init__(config, stage, drop)
        self.window_attn = WindowAttention(config, stage)

    def attend(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """Attend within windows."""
        out: Tensor = self.window_attn(tokens.reshape(len(tokens), height, width, -1))
        return out


class ChannelBlock(_Block):
    """Block with channel attention: channels of a group attend over the whole image."""

    def __init__(self, config: DavitSizes, stage: int, drop: float) -> None:
        super().__init__(config, stage, drop)
        self.channel_attn = ChannelAttention(config, stage)

    def attend(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """Attend between channels."""
        out: Tensor = self.channel_attn(tokens)
        return out


class WindowAttention(nn.Module):
    """Attention within windows; padded pixels are zeros and are not masked."""

    def __init__(self, config: DavitSizes, stage: int) -> None:
        super().__init__()
        width = config.embed_dim[stage]
        self.heads, self.side = config.num_heads[stage], config.window_size
        self.qkv = nn.Linear(width, 3 * width, bias=config.qkv_bias)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, height x width, C] of [B, height, width, C]."""
        batch, height, width, channels = x.shape
        side = self.side
        x = F.pad(x, (0, 0, 0, -width % side, 0, -height % side))
        down, across = x.shape[1] // side, x.shape[2] // side
        x = x.view(batch, down, side, across, side, channels).transpose(2, 3)
        windows = x.reshape(-1, side * side, channels)
        qkv = self.qkv(windows).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv.unbind(0))
        out = self.proj(attended.transpose(1, 2).flatten(2))
        out = out.view(batch, down, across, side, side, channels).transpose(2, 3)
        out = out.reshape(batch, down * side, across * side, channels)
        whole: Tensor = out[:, :height, :width].flatten(1, 2)
        return whole


class ChannelAttention(nn.Module):
    """Attention between the channels of a group: a channel is a row of all pixels."""

    def __init__(self, config: DavitSizes, stage: int) -> None:
        super().__init__()
        width = config.embed_dim[stage]
        self.groups = config.num_groups[stage]
        self.qkv = nn.Linear(width, 3 * width, bias=config.qkv_bias)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [B, N, C]."""
        qkv = self.qkv(tokens).unflatten(2, (3, self.groups, -1)).permute(2, 0, 3, 4, 1)
        query, key, value = qkv.unbind(0)
        scale = tokens.shape[1] ** -0.5
        attended = F.scaled_dot_product_attention(query, key, value, scale=scale)
        out: Tensor = self.proj(attended.permute(0, 3, 1, 2).flatten(2))
        return out


class DavitMlp(nn.Module):
    """Two layers with an exact GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class DropPath(nn.Module):
    """Stochastic depth (Huang et al., 2016): drop the residual branch of random samples."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return the branch, scaled up for the samples that keep it."""
        if not self.rate or not self.training:
            return x
        shape = (len(x), *(1,) * (x.dim() - 1))
        kept = torch.rand(shape, dtype=x.dtype, device=x.device) >= self.rate
        return x * kept / (1 - self.rate)


class FlorenceProjector(nn.Module):
    """Project a feature map [B, C, h, w] to 1 + h x w tokens of the language model."""

    def __init__(self, config: DavitSizes) -> None:
        super().__init__()
        width = config.embed_dim[-1]
        self.image_projection = nn.Linear(width, config.projection_dim, bias=False)
        self.image_proj_norm = nn.LayerNorm(config.projection_dim)
        self.image_position_embed = PositionEmbedding2d(config.max_position_embeddings, width)
        self.visual_temporal_embed = TemporalEmbedding(config.max_temporal_embeddings, width)

    def forward(self, features: Tensor) -> Tensor:
        """Return the projected mean of all tokens, then each projected token."""
        tokens = (features + self.image_position_embed(features)).flatten(2).transpose(1, 2)
        tokens = tokens + self.visual_temporal_embed.pos_idx_to_embed[0]
        tokens = torch.cat([tokens.mean(1, keepdim=True), tokens], dim=1)
        out: Tensor = self.image_proj_norm(self.image_projection(tokens))
        return out


class PositionEmbedding2d(nn.Module):
    """Learned position embeddings of columns (first half of the channels) and rows."""

    def __init__(self, most: int, width: int) -> None:
        super().__init__()
        self.row_embeddings = nn.Embedding(most, width // 2)
        self.column_embeddings = nn.Embedding(most, width - width // 2)

    def forward(self, features: Tensor) -> Tensor:
        """Return [C, h, w] for a feature map [B, C, h, w]."""
        height, width = features.shape[-2:]
        columns = self.column_embeddings.weight[:width].expand(height, -1, -1)
        rows = self.row_embeddings.weight[:height, None].expand(-1, width, -1)
        return torch.cat([columns, rows], dim=-1).permute(2, 0, 1)


class TemporalEmbedding(nn.Module):
    """Sinusoidal position embeddings of time; X-VLA has one frame, so it uses the first only."""

    pos_idx_to_embed: Tensor

    def __init__(self, most: int, width: int) -> None:
        super().__init__()
        half = width // 2
        periods = torch.exp(torch.arange(half) * (-math.log(10000) / half))
        angles = torch.arange(most)[:, None] * periods
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.register_buffer("pos_idx_to_embed", table)
