"""DrQ augmentation: shift images by a few pixels at random."""

from __future__ import annotations

from dataclasses import dataclass

import torch

PAD = 4
"""Largest shift in pixels, as in LeRobot and DrQ."""


@dataclass(frozen=True)
class Shifts:
    """Upper left corners of the crops in the padded images, int64 [N], each 0 to 2 * PAD."""

    top: torch.Tensor
    left: torch.Tensor

    @classmethod
    def draw(cls, n: int, generator: torch.Generator) -> Shifts:
        """Draw the shifts of ``n`` images: all rows first, then all columns, as LeRobot does."""
        top = torch.randint(0, 2 * PAD + 1, (n,), generator=generator)
        return cls(top, torch.randint(0, 2 * PAD + 1, (n,), generator=generator))


def shift_images(images: torch.Tensor, shifts: Shifts) -> torch.Tensor:
    """Return ``images`` [N, C, H, W] shifted; edge pixels repeat.

    This equals a replicate padding by ``PAD`` and a crop of each image at its corner.
    """
    is_small = min(images.shape[-2:]) <= PAD
    if images.device.type == "cpu" and not is_small:  # 8 times as fast as a gather there
        return _shift_by_copies(images, shifts)
    n, _, height, width = images.shape
    rows = _source(shifts.top.to(images.device, non_blocking=True), height)
    columns = _source(shifts.left.to(images.device, non_blocking=True), width)
    pick = torch.arange(n, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[pick, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def _source(corner: torch.Tensor, size: int) -> torch.Tensor:
    """Return the source pixel of each output pixel along one axis, int64 [N, size]."""
    span = torch.arange(-PAD, size - PAD, device=corner.device)
    return (corner[:, None] + span).clamp_(0, size - 1)


def _shift_by_copies(images: torch.Tensor, shifts: Shifts) -> torch.Tensor:
    height, width = images.shape[-2:]
    shifted = torch.empty_like(images)
    corners = zip((shifts.top - PAD).tolist(), (shifts.left - PAD).tolist(), strict=True)
    for image, out, (down, right) in zip(images, shifted, corners, strict=True):
        top, bottom = max(0, -down), min(height, height - down)
        left, end = max(0, -right), min(width, width - right)
        inside = image[:, top + down : bottom + down, left + right : end + right]
        out[:, top:bottom, left:end] = inside
        out[:, :top] = out[:, top : top + 1]
        out[:, bottom:] = out[:, bottom - 1 : bottom]
        out[:, :, :left] = out[:, :, left : left + 1]
        out[:, :, end:] = out[:, :, end - 1 : end]
    return shifted
