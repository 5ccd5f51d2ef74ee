"""Poses as a position and a 6D rotation (the first two rows of the matrix)."""

from __future__ import annotations

import numpy as np

from proctor.features import Array


def compose_poses(reference: Array, relative: Array) -> Array:
    """Return absolute poses [B, T, 9] of ``relative`` ones, as seen from ``reference`` [B, 9]."""
    turned, moved = _matrices(reference[:, None]), reference[:, None, :3].astype(np.float64)
    rotation = turned @ _matrices(relative)
    place = (turned @ relative[..., :3, None].astype(np.float64))[..., 0] + moved
    rows = rotation[..., :2, :].reshape(*relative.shape[:-1], 6)
    made: Array = np.concatenate([place, rows], -1).astype(np.float32)
    return made


def _matrices(poses: Array) -> Array:
    """Return the rotation matrices [..., 3, 3] of poses [..., 9]."""
    first, second = (poses[..., part].astype(np.float64) for part in (slice(3, 6), slice(6, 9)))
    first = first / np.linalg.norm(first, axis=-1, keepdims=True)
    second = second - np.sum(first * second, -1, keepdims=True) * first
    second = second / np.linalg.norm(second, axis=-1, keepdims=True)
    made: Array = np.stack([first, second, np.cross(first, second)], -2)
    return made
