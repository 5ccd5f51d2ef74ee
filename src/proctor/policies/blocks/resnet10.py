"""ResNet10, the image encoder of HIL-SERL, with the parameter names of its published weights.

    image [B, 3, H, W] ─▶ conv 7, stride 2 ─▶ norm, ReLU ─▶ max pool 3, stride 2
                       ─▶ 4 residual blocks, strides 1, 2, 2, 2 ─▶ [B, C, ⌈H/32⌉, ⌈W/32⌉]

It was ported from JAX: all norms are group norms of four groups, and convolutions pad as JAX's
"SAME", where an odd padding puts the extra row or column last.
"""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.errors import UsageError
from proctor.policies.blocks.encoder_sizes import GROUPS, PUBLISHED, ResNet10Sizes
from proctor.policies.lerobot.checkpoint.location import local_folder
from proctor.policies.lerobot.checkpoint.tensor_file import read_tensors
from proctor.policies.lerobot.checkpoint.weights import WEIGHTS_FILE, load_submodule
from proctor.system.hub.repositories import download

_STRIDES = (1, 2, 2, 2)


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad ``x`` [B, C, H, W] so that a convolution gives ⌈n / stride⌉ rows and columns."""
    sides: list[int] = []
    for n in (x.shape[-1], x.shape[-2]):
        total = max(0, (-(-n // stride) - 1) * stride + kernel - n)
        sides += [total // 2, total - total // 2]
    return F.pad(x, sides, value=value)


class SameConv(nn.Module):
    """A convolution without bias that pads as JAX's "SAME"."""

    def __init__(self, channels: int, out_channels: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, kernel, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolved ``x``."""
        convolved: Tensor = self.conv(pad_same(x, self.conv.kernel_size[0], self.conv.stride[0]))
        return convolved


class Norm(nn.Module):
    """A group norm under the name that the weights have."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(GROUPS, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised ``x``."""
        normalised: Tensor = self.group_norm(x)
        return normalised


class MaxPool(nn.Module):
    """Max pooling of 3 by 3 with stride 2, padded as JAX's "SAME"."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled ``x``."""
        return F.max_pool2d(pad_same(x, 3, 2, value=float("-inf")), 3, 2)


class BasicBlock(nn.Module):
    """Two convolutions with a shortcut, which is a projection where the widths differ."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = SameConv(channels, out_channels, 3, stride)
        self.norm1 = Norm(out_channels)
        self.conv2 = SameConv(out_channels, out_channels, 3, 1)
        self.norm2 = Norm(out_channels)
        self.shortcut: nn.Sequential | None = None
        if channels != out_channels:
            self.shortcut = nn.Sequential(
                SameConv(channels, out_channels, 1, stride), Norm(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + (x if self.shortcut is None else self.shortcut(x)))


class Stages(nn.Module):
    """The residual blocks, one for each stage."""

    def __init__(self, sizes: ResNet10Sizes) -> None:
        super().__init__()
        widths = [sizes.embedding_size, *sizes.hidden_sizes]
        self.stages = nn.Sequential(
            *(
                BasicBlock(before, after, stride)
                for before, after, stride in zip(widths, widths[1:], _STRIDES, strict=False)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the feature map."""
        features: Tensor = self.stages(x)
        return features


class ResNet10(nn.Module):
    """The image encoder; attribute names are those of its published weights."""

    def __init__(self, sizes: ResNet10Sizes) -> None:
        super().__init__()
        self.embedder = nn.Sequential(
            nn.Conv2d(3, sizes.embedding_size, 7, 2, 3, bias=False),
            Norm(sizes.embedding_size),
            nn.ReLU(),
            MaxPool(),
        )
        self.encoder = Stages(sizes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature maps [B, C, h, w] of normalised ``images`` [B, 3, H, W]."""
        features: Tensor = self.encoder(self.embedder(images))
        return features


def load_resnet10(encoder: ResNet10, name: str, file: str | None, flag: str) -> None:
    """Load the published weights of ``name`` into ``encoder``.

    Args:
        encoder: the network.
        name: Hub id or local folder of the weights.
        file: a safetensors file, or a folder with model.safetensors, that replaces ``name``.
        flag: the flag of ``file``, for errors.
    """
    found = _find(name, file, flag)
    load_submodule(encoder, read_tensors(found), str(found))


def _find(name: str, file: str | None, flag: str) -> Path:
    if file is not None:
        given = Path(file).expanduser()
        found = given / WEIGHTS_FILE if given.is_dir() else given
        if not found.is_file():
            raise UsageError(f"{flag}: there is no file {found}", code="policy.missing-encoder")
        return found
    if name not in PUBLISHED and (folder := local_folder(name)) is not None:
        return folder / WEIGHTS_FILE
    try:
        return download(name, None, [WEIGHTS_FILE]) / WEIGHTS_FILE
    except UsageError as error:
        raise UsageError(
            f"the image encoder {name} is missing: {error}; download {WEIGHTS_FILE} of "
            f"https://huggingface.co/{name} elsewhere and name it with {flag}=FILE",
            code="policy.missing-encoder",
        ) from None
