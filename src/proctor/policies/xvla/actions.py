"""X-VLA's action spaces, by ``action_mode``: lengths, grippers and losses.

A binary gripper is trained as a logit and returned as a probability. Its value is masked in the
network's inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

from proctor.policies.xvla.config import XVlaConfig

_ARMS = (0, 10)
"""Offset of each arm's xyz (3), 6D rotation (6) and gripper (1) in an action of 20 numbers."""
_EE6D_GRIPPERS = (9, 19)
_JOINT_GRIPPERS = (6, 13)
_SO101_GRIPPERS = (5, 11)


@dataclass(frozen=True)
class ActionSpace:
    """An action space: the network's output length, the executed length, and the grippers.

    ``hidden``: grippers are zeroed in the network's inputs. ``squashed``: their outputs pass a
    sigmoid.
    """

    mode: str
    size: int
    executed: int
    grippers: tuple[int, ...] = ()
    hidden: bool = False
    squashed: bool = False

    def mask_grippers(self, values: Tensor) -> Tensor:
        """Zero the grippers of a state or of actions [..., S], if they are hidden."""
        return values.masked_fill(self._marks(values), 0) if self.hidden else values

    def to_robot_actions(self, actions: Tensor) -> Tensor:
        """Return the executed dimensions of the network's actions [..., size]."""
        if self.squashed:
            actions = torch.where(self._marks(actions), actions.sigmoid(), actions)
        return actions[..., : self.executed]

    def _marks(self, values: Tensor) -> Tensor:
        """Return a mask of the grippers; made on the device, as CUDA graphs need."""
        numbers = torch.arange(values.shape[-1], device=values.device)
        marks = torch.zeros_like(numbers, dtype=torch.bool)
        for place in self.grippers:
            marks = marks | (numbers == place)
        return marks

    def losses(self, given: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        """Return the loss terms of actions [B, T, size]; the loss is their sum."""
        return _LOSSES[self.mode](given, wanted, self)


def make_action_space(config: XVlaConfig) -> ActionSpace:
    """Return the action space that a config names."""
    size, played = config.action_sizes
    grippers = _GRIPPERS.get(config.action_mode, ())
    hides = config.action_mode in ("ee6d", "joint", "so101_bimanual")
    return ActionSpace(config.action_mode, size, played, grippers, hidden=hides, squashed=hides)


def _poses(given: Tensor, wanted: Tensor) -> dict[str, Tensor]:
    """Return 500 x the position error and 10 x the rotation error, summed over both arms."""

    def both(first: int, last: int) -> Tensor:
        errors = [
            F.mse_loss(given[..., arm + first : arm + last], wanted[..., arm + first : arm + last])
            for arm in _ARMS
        ]
        return errors[0] + errors[1]

    return {"position_loss": both(0, 3) * 500.0, "rotate6D_loss": both(3, 9) * 10.0}


def _yes_or_no(given: Tensor, wanted: Tensor, places: tuple[int, ...]) -> Tensor:
    """Return the mean binary cross-entropy of logits."""
    errors = [F.binary_cross_entropy_with_logits(given[..., n], wanted[..., n]) for n in places]
    return sum(errors[1:], errors[0]) / len(errors)


def _ee6d(given: Tensor, wanted: Tensor, space: ActionSpace) -> dict[str, Tensor]:
    grippers = _yes_or_no(given, wanted, space.grippers)
    return {**_poses(given, wanted), "gripper_loss": grippers}


def _agibot(given: Tensor, wanted: Tensor, space: ActionSpace) -> dict[str, Tensor]:
    places = list(space.grippers)
    grippers = F.mse_loss(given[..., places], wanted[..., places]) * 10.0
    return {**_poses(given, wanted), "gripper_loss": grippers}


def _joint(given: Tensor, wanted: Tensor, space: ActionSpace) -> dict[str, Tensor]:
    joints = [n for n in range(space.size) if n not in space.grippers]
    grippers = _yes_or_no(given, wanted, space.grippers) * 0.1
    return {
        "joints_loss": F.mse_loss(given[..., joints], wanted[..., joints]),
        "gripper_loss": grippers,
    }


def _plain(given: Tensor, wanted: Tensor, space: ActionSpace) -> dict[str, Tensor]:
    n = space.executed
    return {"joints_loss": F.mse_loss(given[..., :n], wanted[..., :n])}


def _so101(given: Tensor, wanted: Tensor, space: ActionSpace) -> dict[str, Tensor]:
    """Count everything twice and grippers three times, as LeRobot does."""
    n, places = space.executed, list(space.grippers)
    half = n // 2
    return {
        "joints_loss": F.mse_loss(given[..., :n], wanted[..., :n]),
        "gripper_loss": F.mse_loss(given[..., places], wanted[..., places]),
        "left_arm_loss": F.mse_loss(given[..., :half], wanted[..., :half]),
        "right_arm_loss": F.mse_loss(given[..., half:n], wanted[..., half:n]),
    }


_GRIPPERS: Mapping[str, tuple[int, ...]] = {
    "ee6d": _EE6D_GRIPPERS,
    "agibot_ee6d": _EE6D_GRIPPERS,
    "joint": _JOINT_GRIPPERS,
    "so101_bimanual": _SO101_GRIPPERS,
}
_LOSSES = {
    "ee6d": _ee6d,
    "agibot_ee6d": _agibot,
    "joint": _joint,
    "so101_bimanual": _so101,
    "franka_joint7": _plain,
    "auto": _plain,
}
