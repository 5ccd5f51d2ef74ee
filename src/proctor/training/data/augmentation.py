"""Random image augmentation on the device, with LeRobot's six transforms.

For each sample and camera a few transforms are sampled by weight, without replacement, and applied
in the listed order. All observation steps of a sample get the same transforms. Images are float
[B, 3, H, W] or [B, T, 3, H, W] in [0, 1] before and after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

from proctor.config.sections.image_transforms import ImageTransformSettings, Transform

GRAY = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in the luma (ITU-R 601-2)."""


@dataclass(frozen=True)
class AugmentationPlan:
    """The sampled transforms for the rows of one camera."""

    rounds: tuple[tuple[int, Tensor, Tensor], ...]
    """In order: index of the transform, its rows, and three numbers in [0, 1] for each row."""


def plan_augmentation(
    settings: ImageTransformSettings, rows: int, generator: torch.Generator
) -> AugmentationPlan:
    """Sample the transforms for ``rows`` samples of a camera, on the CPU."""
    weights = torch.tensor([transform.weight for transform in settings.transforms()])
    chosen = torch.multinomial(
        weights.expand(rows, -1), settings.max_num_transforms, generator=generator
    )
    numbers = torch.rand(rows, settings.max_num_transforms, 3, generator=generator)
    if not settings.random_order:
        chosen, order = chosen.sort(dim=1)
        numbers = numbers.gather(1, order[..., None].expand_as(numbers))
    rounds = []
    for place in range(settings.max_num_transforms):
        for kind in range(len(weights)):
            where = (chosen[:, place] == kind).nonzero().flatten()
            if len(where):
                rounds.append((kind, where, numbers[where, place]))
    return AugmentationPlan(tuple(rounds))


def augment(images: Tensor, transforms: Sequence[Transform], plan: AugmentationPlan) -> Tensor:
    """Apply an augmentation plan to the images of a camera."""
    out = images.clone()
    for kind, rows, numbers in plan.rounds:
        at = rows.to(images.device, non_blocking=True)
        drawn = numbers.to(images.device, non_blocking=True)
        out[at] = apply(transforms[kind], out[at], drawn)
    return out


def apply(transform: Transform, images: Tensor, numbers: Tensor) -> Tensor:
    """Apply one transform to images [N, ..., 3, H, W], with random ``numbers`` [N, 3]."""
    flat = images.reshape(-1, *images.shape[-3:])
    drawn = numbers.repeat_interleave(len(flat) // len(images), 0)
    factor = transform.low + (transform.high - transform.low) * drawn[:, 0]
    if transform.name == "affine":
        moved = affine(flat, factor, (2 * drawn[:, 1:] - 1) * drawn.new_tensor(transform.translate))
        return moved.reshape(images.shape)
    return _BY_FACTOR[transform.name](flat, factor[:, None, None, None]).reshape(images.shape)


def _blend(one: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (factor * one + (1 - factor) * other).clamp(0, 1)


def _gray(images: Tensor) -> Tensor:
    weights = images.new_tensor(GRAY)[:, None, None]
    return (images * weights).sum(-3, keepdim=True)


def _brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * factor).clamp(0, 1)


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _gray(images).mean((-3, -2, -1), keepdim=True), factor)


def _saturation(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _gray(images), factor)


def _sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with a 3x3-smoothed image, whose border pixels are unchanged."""
    kernel = images.new_ones(3, 1, 3, 3) / 13
    kernel[:, :, 1, 1] = 5 / 13
    smooth = images.clone()
    smooth[..., 1:-1, 1:-1] = F.conv2d(images, kernel, groups=3)
    return _blend(images, smooth, factor)


def _hue(images: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue by a fraction of the colour circle."""
    red, green, blue = images.unbind(-3)
    value, least = images.amax(-3), images.amin(-3)
    span = value - least
    safe = torch.where(span == 0, torch.ones_like(span), span)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    turned = sixth + 6 * shift[:, 0]
    channels = []
    for offset in (5, 3, 1):
        k = (offset + turned) % 6
        channels.append(value - span * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, -3)


def affine(images: Tensor, degrees: Tensor, shift: Tensor) -> Tensor:
    """Rotate images about their centre and shift them by fractions of width and height.

    Sampling is nearest-neighbour; pixels from outside the image are black.
    """
    height, width = images.shape[-2:]
    angle = degrees * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    # torch's coordinates span 2 in each direction; shifts are whole pixels, as in torchvision.
    pixels = images.new_tensor([width, height])
    right, down = (2 * (shift * pixels).round() / pixels).unbind(-1)
    ratio = height / width
    across = torch.stack([cos, sin * ratio, -(cos * right + sin * ratio * down)], -1)
    along = torch.stack([-sin / ratio, cos, sin / ratio * right - cos * down], -1)
    grid = F.affine_grid(torch.stack([across, along], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="nearest", align_corners=False)


_BY_FACTOR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "saturation": _saturation,
    "hue": _hue,
    "sharpness": _sharpness,
}
