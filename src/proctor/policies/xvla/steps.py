"""Processor steps that only X-VLA has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import ACTION, IMAGES, Array
from proctor.policies.lerobot.processors.step import ProcessorStep, Tensors

DOMAIN = "domain_id"
"""Key of the network's input with the domain: the kind of robot."""
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MOST_DOMAIN = 10_000


@dataclass(frozen=True)
class _ImageStep(ProcessorStep):
    """Step that changes images: those in ``image_keys``, else all ``observation.image*`` keys."""

    image_keys: list[str] | None = None

    def __call__(self, tensors: Tensors) -> Tensors:
        """Change the images."""
        if self.image_keys is None:
            chosen = [key for key in tensors if key.startswith(IMAGES.removesuffix("."))]
        else:
            chosen = [key for key in self.image_keys if key in tensors]
        return tensors | {key: self.change(tensors[key]) for key in chosen}

    def change(self, image: Tensor) -> Tensor:
        """Return the changed image [..., 3, H, W]."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """Return which images are changed."""
        return {"image_keys": self.image_keys}


@dataclass(frozen=True)
class ImageToFloat(_ImageStep):
    """Do nothing: images already are in [0, 1] here.

    LeRobot divides by 255 if any pixel of the batch is above 1, so an image depends on its batch.
    """

    registry_name: ClassVar[str] = "xvla_image_to_float"
    validate_range: bool = True

    def change(self, image: Tensor) -> Tensor:
        """Return the image unchanged."""
        return image

    def config(self) -> dict[str, Any]:
        """Return which images, and whether LeRobot checks their range."""
        return super().config() | {"validate_range": self.validate_range}


@dataclass(frozen=True)
class ImageScale(_ImageStep):
    """Scale images from [0, 1] to [0, 255]."""

    registry_name: ClassVar[str] = "xvla_image_scale"

    def change(self, image: Tensor) -> Tensor:
        """Return the image times 255."""
        return image * 255


@dataclass(frozen=True)
class ImageNetNormalize(_ImageStep):
    """Normalise images by ImageNet's mean and standard deviation."""

    registry_name: ClassVar[str] = "xvla_imagenet_normalize"

    def change(self, image: Tensor) -> Tensor:
        """Return the normalised image."""
        mean, std = (_colour(numbers, image) for numbers in (_MEAN, _STD))
        return (image - mean) / std


def _colour(numbers: tuple[float, ...], like: Tensor) -> Tensor:
    """Return three numbers as a tensor [3, 1, 1]; made on the device, as CUDA graphs need."""
    made = [torch.full((1, 1), n, dtype=like.dtype, device=like.device) for n in numbers]
    return torch.stack(made)


@dataclass(frozen=True)
class AddDomain(ProcessorStep):
    """Add the domain id to the inputs."""

    registry_name: ClassVar[str] = "xvla_add_domain_id"
    domain_id: int = 0

    def __call__(self, tensors: Tensors) -> Tensors:
        """Add the domain id of each row."""
        first = next(iter(tensors.values()))
        domain = torch.full((len(first),), self.domain_id, dtype=torch.long, device=first.device)
        return tensors | {DOMAIN: domain}

    def config(self) -> dict[str, Any]:
        """Return the domain id."""
        return {"domain_id": self.domain_id}

    def check(self, where: str) -> None:
        """Refuse an invalid domain id."""
        if not 0 <= self.domain_id < _MOST_DOMAIN:
            raise UsageError(
                f"{where}: domain_id is {self.domain_id}", code="policy.unknown-domain"
            )


@dataclass(frozen=True)
class AxisAngle(ProcessorStep):
    """Convert rotations of actions from 6D (two columns of the matrix) to axis-angle.

    [xyz, 6D rotation, gripper, ...] becomes [xyz, axis-angle, gripper as -1 or 1].
    """

    registry_name: ClassVar[str] = "xvla_rotation_6d_to_axis_angle"
    expected_action_dim: int = 10

    def __call__(self, tensors: Tensors) -> Tensors:
        """Convert actions [..., 10 or more] to [..., 7]."""
        if ACTION not in tensors:
            return tensors
        action = tensors[ACTION]
        turned = torch.from_numpy(axis_angles(action[..., 3:9].float().cpu().numpy()))
        closed = torch.where(action[..., 9:10] > 0.5, 1.0, -1.0)
        pose = torch.cat([action[..., :3], turned.to(action), closed.to(action)], dim=-1)
        return tensors | {ACTION: pose}

    def config(self) -> dict[str, Any]:
        """Return the action length that LeRobot expects."""
        return {"expected_action_dim": self.expected_action_dim}


def axis_angles(columns: Array) -> Array:
    """Return axis-angle vectors [..., 3] for 6D rotations [..., 6]."""
    rows = columns.reshape(-1, 6)
    first = _unit(rows[:, :3])
    inner = np.sum(first * rows[:, 3:], axis=-1, keepdims=True)
    second = _unit(rows[:, 3:] - inner * first)
    matrix = np.stack([first, second, np.cross(first, second)], axis=-1)
    quaternion = _quaternions(matrix)
    real = np.clip(quaternion[:, 3], -1, 1)
    sine = np.sqrt(1 - real * real)
    angle = np.arccos(real.astype(np.float64)).astype(rows.dtype)
    scale = np.divide(2 * angle, sine, out=np.zeros_like(angle), where=sine > 0)
    turned: Array = quaternion[:, :3] * scale[:, None]
    return turned.reshape(*columns.shape[:-1], 3)


def _unit(vectors: Array) -> Array:
    made: Array = vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-6)
    return made


def _quaternions(matrix: Array) -> Array:
    """Return x, y, z, w for rotation matrices [N, 3, 3] (Bar-Itzhack, 2000: the nearest ones)."""
    m = np.moveaxis(matrix, 0, -1)
    k = np.zeros((len(matrix), 4, 4), matrix.dtype)
    k[:, 0, 0] = m[0, 0] - m[1, 1] - m[2, 2]
    k[:, 1, 0], k[:, 1, 1] = m[0, 1] + m[1, 0], m[1, 1] - m[0, 0] - m[2, 2]
    k[:, 2, 0], k[:, 2, 1] = m[0, 2] + m[2, 0], m[1, 2] + m[2, 1]
    k[:, 2, 2] = m[2, 2] - m[0, 0] - m[1, 1]
    k[:, 3, 0], k[:, 3, 1] = m[2, 1] - m[1, 2], m[0, 2] - m[2, 0]
    k[:, 3, 2], k[:, 3, 3] = m[1, 0] - m[0, 1], m[0, 0] + m[1, 1] + m[2, 2]
    _, vectors = np.linalg.eigh(k / 3)  # reads the lower triangle; the largest eigenvalue is last
    found: Array = vectors[:, :, -1]
    return np.where(found[:, 3:] < 0, -found, found)
