"""Postprocessor steps of GR00T: from normalised action chunks to the robot's actions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import ACTION, STATE, Array
from proctor.policies.blocks.poses import compose_poses
from proctor.policies.groot.steps.statistics import ActionGroup, action_groups, state_parts
from proctor.policies.groot.steps.steps import check_relative_groups, checked_stats
from proctor.policies.lerobot.processors.processors import Stats
from proctor.policies.lerobot.processors.step import (
    STATE_FILE_ONLY,
    ProcessorStep,
    Tensors,
    saved_fields,
)

LIBERO_TRANSFORM = "libero"
GRIPPER = "gripper"
_LIBERO_ACTION = 7


@dataclass(frozen=True)
class ActionUnpack(ProcessorStep):
    """Invert the normalisation by a dataset's statistics."""

    registry_name: ClassVar[str] = "groot_action_unpack_unnormalize_v2"
    env_action_dim: int = 0
    normalize_min_max: bool = True
    clip_normalized_action: bool = False
    libero_gripper_action: bool = False
    libero_gripper_binarize: bool = True
    stats: Stats = field(default_factory=dict, metadata=STATE_FILE_ONLY)

    def __call__(self, tensors: Tensors) -> Tensors:
        """Return actions [..., A] in the robot's units."""
        action = tensors[ACTION]
        if self.env_action_dim:
            action = action[..., : self.env_action_dim]
        if self.normalize_min_max and self.stats:
            action = self._unnormalised(action)
        if self.libero_gripper_action and action.shape[-1] >= _LIBERO_ACTION:
            turned = 1 - 2 * action[..., -1:]
            turned = turned.sign() if self.libero_gripper_binarize else turned
            action = torch.cat([action[..., :-1], turned], -1)
        return {**tensors, ACTION: action}

    def _unnormalised(self, action: Tensor) -> Tensor:
        if self.clip_normalized_action:
            action = action.clamp(-1, 1)
        stats, size = self.stats.get(ACTION, {}), action.shape[-1]
        low, high = (_fitted(stats.get(n), size, action, at=n == "max") for n in ("min", "max"))
        span = high - low
        return torch.where(span == 0, low.expand_as(action), (action + 1) * 0.5 * span + low)

    def config(self) -> dict[str, Any]:
        """Return the step's settings, in LeRobot's order."""
        return saved_fields(self)

    def state(self) -> Tensors:
        """Return the statistics as ``<feature>.<statistic>``."""
        return {f"{k}.{name}": v for k, each in self.stats.items() for name, v in each.items()}

    def with_state(self, state: Tensors, where: str) -> ActionUnpack:
        """Return the step with the statistics of its state file."""
        return replace(self, stats=checked_stats(state, where))


@dataclass(frozen=True)
class ActionUnpackV1(ActionUnpack):
    """Invert the normalisation by a dataset's statistics, for every step of a chunk."""

    registry_name: ClassVar[str] = "groot_action_unpack_unnormalize_v1"

    def config(self) -> dict[str, Any]:
        """Return the step's settings, in LeRobot's order."""
        return {
            "env_action_dim": self.env_action_dim,
            "normalize_min_max": self.normalize_min_max,
        }


def _fitted(values: Tensor | None, size: int, like: Tensor, *, at: bool) -> Tensor:
    """Return flat statistics of ``size``, padded with 0; without statistics 0, or 1 at ``at``."""
    if values is None:
        return torch.full((size,), float(at), dtype=like.dtype, device=like.device)
    flat = values.flatten().to(like.device, like.dtype)[:size]
    return torch.nn.functional.pad(flat, (0, size - len(flat)))


@dataclass(frozen=True)
class ActionDecode(ProcessorStep):
    """Invert the normalisation by a checkpoint's statistics, group by group.

    Relative groups become absolute by the state at the time of the query.
    """

    registry_name: ClassVar[str] = "groot_n1_7_action_decode_v1"
    env_action_dim: int = 0
    raw_stats: dict[str, Any] | None = None
    modality_config: dict[str, Any] | None = None
    use_percentiles: bool = False
    use_relative_action: bool = False
    action_decode_transform: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The state, if actions are relative to it."""
        return (STATE,) if any(group.relative for group in self.groups("")) else ()

    def groups(self, where: str) -> list[ActionGroup]:
        """Return the action groups."""
        return action_groups(
            self.raw_stats or {},
            self.modality_config or {},
            where,
            percentiles=self.use_percentiles,
            relative=self.use_relative_action,
        )

    def __call__(self, tensors: Tensors) -> Tensors:
        """Return actions [B, T, A] in the robot's units; unchanged without statistics."""
        if not self.raw_stats:
            return tensors
        action = tensors[ACTION]
        chunk: Array = action.float().cpu().numpy()
        alone = chunk.ndim == 2
        chunk = chunk[:, None] if alone else chunk
        states = state_parts(self.raw_stats or {}, self.modality_config or {})
        decoded, groups = [], self.groups("")
        for group in groups:
            values = _unnormalised(chunk[..., group.part], group)
            if group.relative:
                reference = tensors[STATE].float().cpu()[:, states[group.state]]
                values = (
                    compose_poses(reference, torch.from_numpy(values)).numpy()
                    if group.is_pose
                    else values + reference.numpy()[:, None]
                )
            decoded.append(values)
        whole = np.concatenate(decoded, -1)
        if self.env_action_dim:
            whole = whole[..., : self.env_action_dim]
        if self.action_decode_transform == LIBERO_TRANSFORM:
            part = next(group.part for group in groups if group.name == GRIPPER)
            whole[..., part] = -np.sign(2 * whole[..., part] - 1)
        found = torch.from_numpy(np.ascontiguousarray(whole[:, 0] if alone else whole))
        return {**tensors, ACTION: found.to(action)}

    def config(self) -> dict[str, Any]:
        """Return the step's settings, in LeRobot's order."""
        return saved_fields(self)

    def check(self, where: str) -> None:
        """Refuse statistics and transforms that cannot be used."""
        groups = self.groups(where)
        if not groups and self.raw_stats:
            raise UsageError(f"{where}: it has no statistics of actions", code="stats.missing")
        check_relative_groups(groups, self.raw_stats, self.modality_config, where)
        transform = self.action_decode_transform
        if transform not in (None, LIBERO_TRANSFORM):
            raise UsageError(
                f"{where}: action_decode_transform is {transform!r} (supported: "
                f"{LIBERO_TRANSFORM})",
                code="checkpoint.unsupported-step",
            )
        grippers = [group.part for group in groups if group.name == GRIPPER]
        most = self.env_action_dim or max((group.part.stop for group in groups), default=0)
        if transform and groups and (not grippers or grippers[0].stop > most):
            raise UsageError(
                f"{where}: action_decode_transform {transform} needs an action group {GRIPPER!r}",
                code="checkpoint.unsupported-step",
            )


def _unnormalised(values: Array, group: ActionGroup) -> Array:
    low, high = group.low, group.high
    if low.ndim == 2:
        low, high = low[: values.shape[1]], high[: values.shape[1]]
    made: Array = (np.clip(values, -1, 1) + 1) * 0.5 * (high - low) + low
    return made
