"""Resizing and cropping of camera images, as GR00T's checkpoints state it.

Two ways exist. The usual one resizes to a square by bicubic interpolation, crops the centre and
resizes again. Checkpoints with ``use_albumentations`` keep the aspect ratio and average pixel areas
(OpenCV's INTER_AREA). Both work on numbers 0 to 255 and round after every step, as 8-bit images do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

from proctor.features import Array


@dataclass(frozen=True)
class ImageGeometry:
    """Sizes of the resized and cropped image, in a checkpoint's words."""

    target: tuple[int, int]
    crop_fraction: float | None = None
    """Share of each side that the crop keeps; None: no crop."""
    shortest_edge: int | None = None
    """Side before the crop; None: the target's height."""
    letter_box: bool = False
    """Whether black bars make the image square first."""
    keeps_aspect: bool = False
    """Whether the aspect ratio is kept and pixel areas are averaged."""

    @property
    def crops(self) -> bool:
        """Whether a part of the image is cropped away."""
        return self.crop_fraction is not None and 0 < self.crop_fraction < 1

    def __call__(self, images: Tensor, position: Tensor | None = None) -> Tensor:
        """Return resized and cropped images [B, 3, h, w] of images [B, 3, H, W], 0 to 255.

        ``position`` [B, 2] places each row's crop between top and bottom, left and right: 0 to 1.
        None: the centre.
        """
        if self.letter_box:
            images = pad_to_square(images)
        edge = self.shortest_edge or self.target[0]
        if self.keeps_aspect:
            return resize_shortest(self._cropped(resize_shortest(images, edge), position), edge)
        images = self._cropped(resize_bicubic(images, (edge, edge)), position)
        return resize_bicubic(images, self.target)

    def _cropped(self, images: Tensor, position: Tensor | None) -> Tensor:
        if not self.crops:
            return images
        assert self.crop_fraction is not None, "crops says so"
        sides = images.shape[-2:]
        rounded = int if self.keeps_aspect else round
        height, width = (max(1, int(rounded(side * self.crop_fraction))) for side in sides)
        spare = sides[0] - height, sides[1] - width
        if position is not None:
            corners = [position[:, axis].double() * spare[axis] for axis in range(2)]
            return _windows(images, (height, width), torch.stack(corners).round().long())
        top, left = spare[0] // 2, spare[1] // 2
        return images[..., top : top + height, left : left + width]


def _windows(images: Tensor, size: tuple[int, int], corners: Tensor) -> Tensor:
    """Return a window of each row of images [B, 3, H, W]; ``corners`` [2, B] are top and left."""
    top, left = corners
    down = top[:, None] + torch.arange(size[0], device=images.device)
    across = left[:, None] + torch.arange(size[1], device=images.device)
    row = torch.arange(len(images), device=images.device)[:, None, None]
    found: Tensor = images[row, :, down[:, :, None], across[:, None]]  # [B, h, w, 3]
    return found.permute(0, 3, 1, 2)


def pad_to_square(images: Tensor) -> Tensor:
    """Add black bars at both sides, so that the image is a square."""
    height, width = images.shape[-2:]
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    return F.pad(images, (left, side - width - left, top, side - height - top))


def resize_bicubic(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize by antialiased bicubic interpolation, rounded to whole numbers 0 to 255."""
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    # On a CPU LeRobot resizes 8-bit images, which are rounded between the two axes too.
    given = images.to(torch.uint8) if images.device.type == "cpu" else images
    resized = F.interpolate(given, size=size, mode="bicubic", align_corners=False, antialias=True)
    return resized.to(images.dtype).clamp(0, 255).round()


def resize_shortest(images: Tensor, edge: int) -> Tensor:
    """Resize so that the shortest side is ``edge``, by averaging areas as OpenCV does."""
    height, width = images.shape[-2:]
    shortest = min(height, width)
    if shortest == edge:
        return images
    scale = edge / float(shortest)
    size = max(1, round(height * scale)), max(1, round(width * scale))
    if size[0] <= height and size[1] <= width:
        return _shrink(images, size)
    return _grow(images, size)


def _shrink(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Average the old pixels under each new one."""
    height, width = images.shape[-2:]
    down, across = (
        _area_weights(before, after, str(images.device))
        for before, after in zip((height, width), size, strict=True)
    )
    averaged: Tensor = down @ images @ across.T
    return averaged.clamp(0, 255).round()


@lru_cache(maxsize=64)
def _area_weights(before: int, after: int, device: str) -> Tensor:
    """Return the share of old pixels in new ones along one axis, [after, before]."""
    ends = np.arange(after + 1) * (before / after)
    old = np.arange(before)
    overlap = np.minimum(ends[1:, None], old + 1) - np.maximum(ends[:-1, None], old)
    overlap = np.clip(overlap, 0, None)
    return _constant((overlap / overlap.sum(1, keepdims=True)).astype(np.float32), device)


def _grow(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Interpolate where a new pixel covers two old ones, in OpenCV's integer arithmetic."""
    height, width = images.shape[-2:]
    (top, bottom), (share_top, share_bottom) = _taps(height, size[0], str(images.device))
    (left, right), (share_left, share_right) = _taps(width, size[1], str(images.device))
    x = images.to(torch.int32)
    rows = (x[..., left] * share_left + x[..., right] * share_right) >> 4
    above = (rows[..., top, :] * share_top[:, None]) >> 16
    below = (rows[..., bottom, :] * share_bottom[:, None]) >> 16
    grown: Tensor = (above + below + 2) >> 2
    return grown.to(images.dtype)


@lru_cache(maxsize=64)
def _taps(before: int, after: int, device: str) -> tuple[Tensor, Tensor]:
    """Return the two old pixels [2, after] of each new one, and their shares of 2048."""
    growth = after / before
    new = np.arange(after)
    old = np.floor(new * (1 / growth)).astype(np.int64)
    share = ((new + 1) - (old + 1) * growth).astype(np.float32)
    share = np.where(share <= 0, np.float32(0), share - np.floor(share))
    share = np.where(old >= before - 1, np.float32(0), share)
    pixels = np.minimum(np.stack([old, old + 1]), before - 1)
    shares = np.round(np.stack([1 - share, share]) * 2048).astype(np.int32)
    return _constant(pixels, device), _constant(shares, device)


def _constant(values: Array, device: str) -> Tensor:
    """Return a tensor that is kept between calls: a CUDA graph cannot copy it from the host."""
    with torch.inference_mode(mode=False):
        return torch.from_numpy(values).to(device)


@dataclass(frozen=True)
class PatchGeometry:
    """Image sizes that the vision encoder takes, as its image processor states them."""

    side: int = 32
    """Sides must be multiples of this number of pixels."""
    fewest: int = 65_536
    """Smallest number of pixels."""
    most: int = 16_777_216
    mean: float = 0.5
    std: float = 0.5

    def __call__(self, images: Tensor) -> Tensor:
        """Return normalised images [B, 3, h, w] whose sides are multiples of ``side``."""
        resized = resize_bicubic(images, self.size(*images.shape[-2:]))
        return (resized - 255 * self.mean) / (255 * self.std)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the nearest valid height and width."""
        side = self.side
        found = [round(n / side) * side for n in (height, width)]
        area, pixels = found[0] * found[1], height * width
        if area > self.most:
            shrink = (pixels / self.most) ** 0.5
            found = [max(side, int(n / shrink / side) * side) for n in (height, width)]
        elif area < self.fewest:
            grow = (self.fewest / pixels) ** 0.5
            found = [-int(-n * grow // side) * side for n in (height, width)]
        return found[0], found[1]
