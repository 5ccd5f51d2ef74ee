"""ResNet-18 and -34 feature extractors (He et al., 2015) with torchvision's parameter names.

Children come in the order conv1, bn1, relu, maxpool, layer1 ... layer4, so that
``nn.Sequential(*resnet.children())`` has the numbered names that Diffusion checkpoints use.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]
"""Makes the normalisation layer for a number of channels."""

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
OUT_CHANNELS = 512


class FrozenBatchNorm2d(nn.Module):
    """Batch normalisation with frozen statistics and affine parameters: all are buffers."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` [B, C, H, W]."""
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )

    def fold_into(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        """Return ``x`` convolved and normalised, with the norm folded into the weights.

        Scaling the weights is much cheaper than scaling every pixel, forward and backward. The
        weights use the memory format of ``x``.
        """
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        weight = conv.weight * scale[:, None, None, None]
        if x.is_contiguous(memory_format=torch.channels_last):
            weight = weight.contiguous(memory_format=torch.channels_last)
        bias = self.bias - self.running_mean * scale
        return F.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation)


def convolved(conv: nn.Module, norm: nn.Module, x: Tensor) -> Tensor:
    """Return ``x`` convolved and normalised; training folds a frozen norm into the weights."""
    # An adapter may have replaced the convolution.
    if type(conv) is nn.Conv2d and isinstance(norm, FrozenBatchNorm2d) and norm.training:
        return norm.fold_into(conv, x)
    normed: Tensor = norm(conv(x))
    return normed


def group_norm(channels: int) -> nn.Module:
    """Return Diffusion Policy's replacement for BatchNorm: groups of 16 channels."""
    return nn.GroupNorm(channels // 16, channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(
        self, channels_in: int, channels: int, norm: Norm, *, stride: int, dilation: int
    ) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels_in, channels, stride, dilation)
        self.bn1 = norm(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv3x3(channels, channels, 1, dilation)
        self.bn2 = norm(channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), norm(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(f(x) + shortcut(x))."""
        out = self.relu(convolved(self.conv1, self.bn1, x))
        out = convolved(self.conv2, self.bn2, out)
        shortcut = x
        if self.downsample is not None:
            shortcut = convolved(self.downsample[0], self.downsample[1], x)
        activated: Tensor = self.relu(out + shortcut)
        return activated


class ResNet(nn.Module):
    """The convolutional part of a ResNet: [B, 3, H, W] to [B, 512, H/32, W/32], rounded up.

    ``dilate_last`` keeps the last stage at stride 16: its later blocks use a dilation of 2.
    """

    def __init__(self, name: str, norm: Norm, *, dilate_last: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        sizes = BLOCKS[name]
        self.layer1 = _stage(64, 64, sizes[0], norm, stride=1)
        self.layer2 = _stage(64, 128, sizes[1], norm, stride=2)
        self.layer3 = _stage(128, 256, sizes[2], norm, stride=2)
        last_stride, last_dilation = (1, 2) if dilate_last else (2, 1)
        self.layer4 = _stage(256, 512, sizes[3], norm, stride=last_stride, dilation=last_dilation)
        self._init_convolutions()

    def _init_convolutions(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the feature map of the last stage."""
        if (
            x.is_cuda and self.training
        ):  # faster on tensor cores: saves a fifth of ACT's training step
            x = x.contiguous(memory_format=torch.channels_last)
        x = self.maxpool(self.relu(convolved(self.conv1, self.bn1, x)))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return x


def feature_map_size(height: int, width: int) -> tuple[int, int]:
    """Return the size of the last stage's feature map: five halvings, each rounded up."""
    return -(-height // 32), -(-width // 32)


def _conv3x3(channels_in: int, channels: int, stride: int, dilation: int) -> nn.Conv2d:
    return nn.Conv2d(
        channels_in, channels, 3, stride=stride, padding=dilation, dilation=dilation, bias=False
    )


def _stage(
    channels_in: int, channels: int, n_blocks: int, norm: Norm, *, stride: int, dilation: int = 1
) -> nn.Sequential:
    first = BasicBlock(channels_in, channels, norm, stride=stride, dilation=1)
    rest = [
        BasicBlock(channels, channels, norm, stride=1, dilation=dilation)
        for _ in range(n_blocks - 1)
    ]
    return nn.Sequential(first, *rest)
