"""The preprocessor steps of GR00T that pack states, actions and camera views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import ACTION, IMAGE, IMAGES, STATE
from proctor.policies.blocks.poses import relative_poses
from proctor.policies.groot.embodiments import EMBODIMENTS, N15_EMBODIMENTS, NEW
from proctor.policies.groot.network.sizes import N15_HORIZON
from proctor.policies.groot.steps.statistics import ActionGroup, action_groups, state_parts
from proctor.policies.lerobot.processors.limits import MOST_STEPS, MOST_WIDTH
from proctor.policies.lerobot.processors.processors import Stats
from proctor.policies.lerobot.processors.step import (
    OURS,
    STATE_FILE_ONLY,
    ProcessorStep,
    PromptInputs,
    Tensors,
    saved_fields,
)
from proctor.policies.lerobot.processors.step_reader import group_stats

VIEW = "groot.view."
"""Prefix of the network's inputs with camera views, in the checkpoint's order."""
EMBODIMENT, ACTION_MASK = "embodiment_id", "action_mask"
IS_PAD = "action_is_pad"
NO_TASK = "Perform the task."
"""Prompt where there is no instruction."""
_WRIST, _WRIST_ALIAS = "wrist_image", "image2"


@dataclass(frozen=True)
class PackInputs(ProcessorStep):
    """Normalise and pad states and actions, order the views, add the embodiment's number."""

    registry_name: ClassVar[str] = "groot_n1_7_pack_inputs_v1"
    state_horizon: int = 1
    action_horizon: int = 40
    valid_action_horizon: int = 40
    video_horizon: int | None = None
    max_state_dim: int = 132
    max_action_dim: int = 132
    language_key: str = "task"
    formalize_language: bool = True
    embodiment_tag: str = NEW
    embodiment_mapping: dict[str, int] = field(default_factory=lambda: dict(EMBODIMENTS))
    normalize_min_max: bool = True
    state_dropout_prob: float = 0.0
    clip_outliers: bool = True
    use_percentiles: bool = False
    video_modality_keys: list[str] | None = None
    raw_stats: dict[str, Any] | None = None
    modality_config: dict[str, Any] | None = None
    stats: Stats = field(default_factory=dict, metadata=STATE_FILE_ONLY)
    """Flat statistics of state and action: min and max."""

    @property
    def embodiment(self) -> int:
        """Number of the embodiment; unknown names have 0, as in LeRobot."""
        return self.embodiment_mapping.get(self.embodiment_tag, 0)

    def check_embodiment(self, slots: int) -> None:
        """Refuse an embodiment whose number is beyond the network's ``slots``."""
        if not 0 <= self.embodiment < slots:
            raise UsageError(
                f"{self.registry_name}: the embodiment {self.embodiment_tag} has number "
                f"{self.embodiment} (choose 0-{slots - 1})",
                code="policy.unknown-embodiment",
            )

    def encode_prompt(self, prompt_inputs: PromptInputs) -> PromptInputs:
        """Write instructions as the backbone was trained on them."""
        words = tuple(self._formal(text or NO_TASK) for text in prompt_inputs.words)
        return replace(super().encode_prompt(prompt_inputs), words=words)

    def _formal(self, text: str) -> str:
        if not self.formalize_language:
            return text
        return "".join(c for c in text.lower() if c.isalnum() or c.isspace() or c == "_")

    def __call__(self, tensors: Tensors) -> Tensors:
        """Pack one batch; only training samples have actions."""
        views = self.view_keys(tensors)
        packed = {k: v for k, v in tensors.items() if not k.startswith(IMAGE)}
        for number, key in enumerate(views * max(1, self.video_horizon or 1)):
            packed[f"{VIEW}{number:02}"] = (tensors[key].clamp(0, 1) * 255).floor()
        if ACTION in tensors:
            packed |= self._actions(tensors)
        if STATE in tensors:
            state = self._min_max(tensors[STATE], STATE)
            packed[STATE] = F.pad(state, (0, self.max_state_dim - state.shape[-1]))
        first = next(iter(packed.values()))
        packed[EMBODIMENT] = torch.full((len(first),), self.embodiment, device=first.device)
        return packed

    def view_keys(self, available: Mapping[str, Any]) -> list[str]:
        """Return the keys of the views in the checkpoint's order, else in alphabetical order."""
        found = sorted(key for key in available if key.startswith(IMAGES))
        if not found:
            return [IMAGE] if IMAGE in available else []
        names = [
            next((IMAGES + name for name in _aliases(key) if IMAGES + name in found), None)
            for key in self.video_modality_keys or ()
        ]
        return [name for name in names if name is not None] or found

    def _min_max(self, x: Tensor, key: str) -> Tensor:
        """Scale to -1 to 1 by the flat statistics; constant dimensions become 0."""
        if not self.normalize_min_max or key not in self.stats:
            return x
        stats, size = self.stats[key], x.shape[-1]
        low = _aligned(stats.get("min"), size, 0.0, x)
        high = _aligned(stats.get("max"), size, 1.0, x)
        return self._scaled(x, low, high)

    def _scaled(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        span = high - low
        scaled = 2 * (x - low) / torch.where(span == 0, torch.ones_like(span), span) - 1
        scaled = torch.where(span == 0, torch.zeros_like(scaled), scaled)
        return scaled.clamp(-1, 1) if self.clip_outliers else scaled

    def _actions(self, tensors: Tensors) -> Tensors:
        """Return normalised, padded actions [B, T, A] and their mask."""
        actions = tensors[ACTION]
        actions = actions[:, None] if actions.dim() == 2 else actions
        length, size = actions.shape[1:]
        if length > self.action_horizon or size > self.max_action_dim:
            raise ValueError(
                f"actions are {length}x{size}, at most {self.action_horizon}x{self.max_action_dim}"
            )
        normalised = self._normalised(actions, tensors.get(STATE))
        valid = torch.arange(self.action_horizon, device=actions.device) < min(
            length, self.valid_action_horizon
        )
        valid = valid.expand(len(actions), -1)
        if IS_PAD in tensors:
            room = self.action_horizon - length
            valid = valid & ~F.pad(tensors[IS_PAD].bool(), (0, room))
        spare = self.max_action_dim - size, self.action_horizon - length
        padded = F.pad(normalised, (0, spare[0], 0, spare[1])) * valid[..., None]
        mask = F.pad(valid[..., None].expand(-1, -1, size).to(padded.dtype), (0, spare[0]))
        return {ACTION: padded, ACTION_MASK: mask}

    def _normalised(self, actions: Tensor, state: Tensor | None) -> Tensor:
        groups = self.action_groups("the preprocessor")
        whole = groups and groups[-1].part.stop == actions.shape[-1]
        if not groups or not whole:
            if any(group.relative for group in groups):
                raise ValueError("relative action groups do not match the actions' size")
            return self._min_max(actions, ACTION)
        return torch.cat([self._group(actions, group, state) for group in groups], -1)

    def _group(self, actions: Tensor, group: ActionGroup, state: Tensor | None) -> Tensor:
        x = actions[..., group.part]
        if group.relative and state is not None:
            reference = state[:, self._state_part(group)]
            x = relative_poses(reference, x) if group.is_pose else x - reference[:, None]
        low, high = (torch.from_numpy(part).to(x) for part in (group.low, group.high))
        if low.dim() == 2:
            low, high = low[: x.shape[1]], high[: x.shape[1]]
        return self._scaled(x, low, high) if self.normalize_min_max else x

    def _state_part(self, group: ActionGroup) -> slice:
        """Return the place of the state that relative actions refer to."""
        return state_parts(self.raw_stats or {}, self.modality_config or {})[group.state]

    def action_groups(self, where: str) -> list[ActionGroup]:
        """Return the checkpoint's action groups; empty if it has none."""
        if not self.raw_stats or not self.modality_config:
            return []
        return action_groups(
            self.raw_stats,
            self.modality_config,
            where,
            percentiles=self.use_percentiles,
            relative=True,
        )

    def config(self) -> dict[str, Any]:
        """Return the step's settings, in LeRobot's order."""
        return saved_fields(self)

    def state(self) -> Tensors:
        """Return the flat statistics as ``<feature>.<statistic>``."""
        return {f"{k}.{name}": v for k, each in self.stats.items() for name, v in each.items()}

    def with_state(self, state: Tensors, where: str) -> PackInputs:
        """Return the step with the statistics of its state file."""
        return replace(self, stats=checked_stats(state, where))

    def on(self, device: torch.device) -> PackInputs:
        """Return the step with its statistics on ``device``."""
        moved = {k: {n: v.to(device) for n, v in each.items()} for k, each in self.stats.items()}
        return replace(self, stats=moved)

    def check(self, where: str) -> None:
        """Refuse sizes out of range and settings that are not supported."""
        most = {
            "action_horizon": MOST_STEPS,
            "valid_action_horizon": MOST_STEPS,
            "max_state_dim": MOST_WIDTH,
            "max_action_dim": MOST_WIDTH,
        }
        for name, limit in most.items():
            check_range(f"{where}: {name}", getattr(self, name), limit)
        check_range(f"{where}: video_horizon", self.video_horizon or 1, 16)
        if self.state_horizon != 1 or self.language_key != "task":
            raise UsageError(
                f"{where}: state_horizon is {self.state_horizon}, language_key "
                f"{self.language_key!r} (supported: 1, 'task')",
                code="checkpoint.unsupported-step",
            )
        if not 0 <= self.state_dropout_prob < 1:
            raise UsageError(
                f"{where}: state_dropout_prob is {self.state_dropout_prob:g}",
                code="checkpoint.unsupported-step",
            )
        check_relative_groups(
            self.action_groups(where), self.raw_stats, self.modality_config, where
        )


@dataclass(frozen=True)
class PackInputsV3(PackInputs):
    """N1.5's step, as LeRobot 0.5.1 writes it.

    Each row keeps its own instruction; LeRobot gives the first one to the whole batch.
    """

    registry_name: ClassVar[str] = "groot_pack_inputs_v3"
    action_horizon: int = N15_HORIZON
    max_state_dim: int = 64
    max_action_dim: int = 32
    formalize_language: bool = False
    embodiment_mapping: dict[str, int] = field(default_factory=lambda: dict(N15_EMBODIMENTS))
    clip_outliers: bool = field(default=False, metadata=OURS)

    def _formal(self, text: str) -> str:
        if not self.formalize_language:
            return text
        return "".join(c for c in text.lower() if c.isalnum() or c.isspace())

    def _actions(self, tensors: Tensors) -> Tensors:
        """Return normalised, padded actions [B, T, A] and their mask.

        A short chunk is filled with its last action, and the filling counts in the loss.
        """
        actions = tensors[ACTION]
        actions = actions[:, None] if actions.dim() == 2 else actions
        actions = self._min_max(actions, ACTION)[:, : self.action_horizon]
        missing = self.action_horizon - actions.shape[1]
        actions = torch.cat([actions, actions[:, -1:].expand(-1, missing, -1)], 1)
        spare = self.max_action_dim - actions.shape[-1]
        mask = F.pad(torch.ones_like(actions), (0, spare))
        return {ACTION: F.pad(actions, (0, spare)), ACTION_MASK: mask}

    def config(self) -> dict[str, Any]:
        """Return the step's settings, in LeRobot's order."""
        return {
            "state_horizon": self.state_horizon,
            "action_horizon": self.action_horizon,
            "max_state_dim": self.max_state_dim,
            "max_action_dim": self.max_action_dim,
            "language_key": self.language_key,
            "formalize_language": self.formalize_language,
            "embodiment_tag": self.embodiment_tag,
            "embodiment_mapping": self.embodiment_mapping,
            "normalize_min_max": self.normalize_min_max,
        }


def _aliases(name: str) -> tuple[str, ...]:
    """Return the camera names that a checkpoint's view may have."""
    return (name, _WRIST_ALIAS) if name == _WRIST else (name,)


def _aligned(values: Tensor | None, size: int, filling: float, like: Tensor) -> Tensor:
    """Return flat statistics cut or padded to ``size``."""
    if values is None:
        return torch.full((size,), filling, dtype=like.dtype, device=like.device)
    flat = values.flatten().to(like.device, like.dtype)[:size]
    return F.pad(flat, (0, size - len(flat)), value=filling)


def checked_stats(state: Tensors, where: str) -> Stats:
    """Return the statistics of a state file."""
    stats = group_stats(state)
    for key, each in stats.items():
        for name, value in each.items():
            if value.is_complex() or not value.double().isfinite().all():
                raise UsageError(
                    f"{where}: {key}.{name} holds numbers that are not finite",
                    code="stats.invalid",
                )
    return stats


def check_range(name: str, value: int, most: int) -> None:
    """Refuse a number that is not from 1 to ``most``."""
    if not 1 <= value <= most:
        raise UsageError(f"{name} is {value} (choose 1-{most})", code="policy.out-of-range")


def check_relative_groups(
    groups: list[ActionGroup],
    raw: dict[str, Any] | None,
    modality: dict[str, Any] | None,
    where: str,
) -> None:
    """Refuse relative action groups without a state of the same size."""
    states = state_parts(raw or {}, modality or {})
    for group in groups:
        part = states.get(group.state)
        size = group.part.stop - group.part.start
        if group.relative and (part is None or part.stop - part.start != size):
            raise UsageError(
                f"{where}: the relative action group {group.name!r} needs a state group "
                f"{group.state!r} of {size} numbers",
                code="checkpoint.invalid-pipeline",
            )
