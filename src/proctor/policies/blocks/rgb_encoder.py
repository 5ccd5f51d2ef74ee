"""Image encoder of Diffusion Policy and VQ-BeT: ResNet features and spatial softmax keypoints."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.blocks.layers import Layers
from proctor.policies.blocks.resnet import OUT_CHANNELS, ResNet, feature_map_size, group_norm


class VisionConfig(Protocol):
    """Config fields of the image encoder."""

    vision_backbone: str
    use_group_norm: bool
    spatial_softmax_num_keypoints: int
    crop_shape: list[int] | None

    @property
    def encoded_size(self) -> tuple[int, int]:
        """Height and width of the encoder's input."""


class RgbEncoder(nn.Module):
    """Encodes an image as the mean positions of learned keypoints."""

    def __init__(self, config: VisionConfig, resize: list[int] | None = None) -> None:
        super().__init__()
        self.resize = resize
        self.crop = config.crop_shape
        norm = group_norm if config.use_group_norm else nn.BatchNorm2d
        self.backbone = Layers(*ResNet(config.vision_backbone, norm).children())
        n_keypoints = config.spatial_softmax_num_keypoints
        self.pool = SpatialSoftmax(feature_map_size(*config.encoded_size), n_keypoints)
        self.out = nn.Linear(2 * n_keypoints, 2 * n_keypoints)

    def forward(self, images: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Map images [N, 3, H, W], cropped at ``offsets``, to features [N, 2 * keypoints]."""
        images = resize_and_crop(images, self.resize, self.crop, offsets)
        keypoints = self.pool(self.backbone(images))
        return F.relu(self.out(keypoints.flatten(1)))


def encode_history(encoder: nn.Module, images: Tensor, offsets: Tensor | None) -> Tensor:
    """Return the encoder's features [B, O, D] of images [B, O, 3, H, W] of one camera.

    ``offsets`` [B, 2] is the crop of each row, the same for all its O steps; see ``crop``.
    """
    shape = images.shape[:2]
    repeated = None if offsets is None else offsets.repeat_interleave(shape[1], 0)
    features: Tensor = encoder(images.flatten(0, 1), repeated)
    return features.reshape(*shape, -1)


def resize_and_crop(
    images: Tensor, resize: list[int] | None, size: list[int] | None, offsets: Tensor | None
) -> Tensor:
    """Resize images [N, 3, H, W] to ``resize`` and crop them to ``size``; None skips a step."""
    if resize is not None:
        images = F.interpolate(images, resize, mode="bilinear", antialias=True)
    return images if size is None else crop(images, size, offsets)


def crop(images: Tensor, size: list[int], offsets: Tensor | None) -> Tensor:
    """Crop images [N, 3, H, W] to ``size`` at the centre, or at ``offsets`` [N, 2].

    An offset is (down, across) as a share of the free space, from 0 to below 1.
    """
    (height, width), (h, w) = images.shape[-2:], size
    if offsets is None:
        top, left = round((height - h) / 2), round((width - w) / 2)
        return images[..., top : top + h, left : left + w]
    down = (offsets[:, :1] * (height - h + 1)).long()  # all offsets are equally likely
    across = (offsets[:, 1:] * (width - w + 1)).long()
    rows = down + torch.arange(h, device=images.device)
    columns = across + torch.arange(w, device=images.device)
    each = torch.arange(len(images), device=images.device)
    found = images.movedim(1, -1)[each[:, None, None], rows[:, :, None], columns[:, None, :]]
    return found.movedim(-1, 1).contiguous()


class SpatialSoftmax(nn.Module):
    """Expected (x, y) position in [-1, 1] of each feature channel (Finn et al., 2016)."""

    pos_grid: Tensor

    def __init__(self, map_size: tuple[int, int], n_keypoints: int) -> None:
        super().__init__()
        h, w = map_size
        self.nets = nn.Conv2d(OUT_CHANNELS, n_keypoints, 1)
        y, x = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        self.register_buffer("pos_grid", torch.stack([x.flatten(), y.flatten()], dim=1))

    def forward(self, features: Tensor) -> Tensor:
        """Map features [N, C, h, w] to keypoints [N, K, 2]."""
        attention = self.nets(features).flatten(2).softmax(dim=-1)  # [N, K, h * w]
        keypoints: Tensor = attention @ self.pos_grid
        return keypoints
