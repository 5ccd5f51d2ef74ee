"""Poses as a position and a 6D rotation (the first two rows of the matrix): 9 numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def compose_poses(reference: Tensor, relative: Tensor) -> Tensor:
    """Return absolute poses [B, T, 9] of ``relative`` ones, as seen from ``reference`` [B, 9]."""
    turned, moved = _matrices(reference[:, None]), _precise(reference[:, None, :3])
    place = (turned @ _precise(relative[..., :3, None]))[..., 0] + moved
    return _pose(place, turned @ _matrices(relative)).to(relative)


def relative_poses(reference: Tensor, absolute: Tensor) -> Tensor:
    """Return poses [B, T, 9] as seen from ``reference`` [B, 9]: the inverse of compose_poses."""
    back = _matrices(reference[:, None]).mT
    moved = _precise(absolute[..., :3] - reference[:, None, :3])
    return _pose((back @ moved[..., None])[..., 0], back @ _matrices(absolute)).to(absolute)


def _pose(place: Tensor, rotation: Tensor) -> Tensor:
    return torch.cat([place, rotation[..., :2, :].flatten(-2)], -1)


def _matrices(poses: Tensor) -> Tensor:
    """Return the rotation matrices [..., 3, 3] of poses [..., 9]; rows need not be orthonormal."""
    first, second = _precise(poses[..., 3:6]), _precise(poses[..., 6:9])
    first = first / first.norm(dim=-1, keepdim=True)
    second = second - (first * second).sum(-1, keepdim=True) * first
    second = second / second.norm(dim=-1, keepdim=True)
    return torch.stack([first, second, torch.linalg.cross(first, second)], -2)


def _precise(x: Tensor) -> Tensor:
    """Return float64 numbers; float32 where the device has none."""
    return x.float() if x.device.type == "mps" else x.double()
