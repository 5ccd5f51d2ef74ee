"""Pictures to a few numbers by a ResNet and keypoints, as Diffusion Policy and VQ-BeT have it."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.blocks.layers import Layers
from proctor.policies.blocks.resnet import OUT_CHANNELS, ResNet, feature_map_size, group_norm


class VisionConfig(Protocol):
    """A config that says how pictures are looked at."""

    vision_backbone: str
    use_group_norm: bool
    spatial_softmax_num_keypoints: int
    crop_shape: list[int] | None

    @property
    def encoded_size(self) -> tuple[int, int]:
        """Height and width of what the encoder sees."""


class RgbEncoder(nn.Module):
    """An image becomes the mean positions of ``spatial_softmax_num_keypoints`` learned features."""

    def __init__(self, config: VisionConfig, resize: list[int] | None = None) -> None:
        super().__init__()
        self.resize = resize
        self.crop = config.crop_shape
        norm = group_norm if config.use_group_norm else nn.BatchNorm2d
        self.backbone = Layers(*ResNet(config.vision_backbone, norm).children())
        n_keypoints = config.spatial_softmax_num_keypoints
        self.pool = SpatialSoftmax(feature_map_size(*config.encoded_size), n_keypoints)
        self.out = nn.Linear(2 * n_keypoints, 2 * n_keypoints)

    def forward(self, images: Tensor, places: Tensor | None = None) -> Tensor:
        """Map images [N, 3, H, W] to features [N, 2 * keypoints]."""
        if self.resize is not None:
            images = F.interpolate(images, self.resize, mode="bilinear", antialias=True)
        if self.crop is not None:
            images = cropped(images, self.crop, places)
        keypoints = self.pool(self.backbone(images))
        return F.relu(self.out(keypoints.flatten(1)))


def cropped(images: Tensor, size: list[int], places: Tensor | None) -> Tensor:
    """Cut out the middle, or from each image the part that ``places`` [N, 2] says, from 0 to 1."""
    (height, width), (h, w) = images.shape[-2:], size
    if places is None:
        top, left = round((height - h) / 2), round((width - w) / 2)
        return images[..., top : top + h, left : left + w]
    down = (places[:, :1] * (height - h + 1)).long()  # all places are equally likely
    across = (places[:, 1:] * (width - w + 1)).long()
    rows = down + torch.arange(h, device=images.device)
    columns = across + torch.arange(w, device=images.device)
    each = torch.arange(len(images), device=images.device)
    found = images.movedim(1, -1)[each[:, None, None], rows[:, :, None], columns[:, None, :]]
    return found.movedim(-1, 1).contiguous()


class SpatialSoftmax(nn.Module):
    """Where features are, not what they are (Finn et al., 2016): expected (x, y) in [-1, 1]."""

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
