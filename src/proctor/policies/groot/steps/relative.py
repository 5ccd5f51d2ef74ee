"""Settings for learning actions relative to the state, from a dataset's statistics.

Action dimensions whose names are excluded stay absolute, each as a group of its own. Poses of an
end-effector are relative as transforms, in groups called ``eef``. The others form groups called
``single_arm``. A relative group has statistics for each step of the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from proctor.errors import UsageError
from proctor.features import ACTION, IMAGES, STATE
from proctor.policies.groot.nvidia import ProcessorSettings
from proctor.policies.lerobot.config.presets import POSE_SIZE
from proctor.policies.lerobot.processors.processors import Stats
from proctor.policies.lerobot.processors.relative_actions import RELATIVE_STATS

_ARM, _POSE = "single_arm", "eef"


@dataclass(frozen=True)
class _Group:
    """Action dimensions that are normalised together."""

    name: str
    dimensions: list[int]
    relative: bool
    is_pose: bool = False


def relative_settings(
    config: Any, stats: Stats, base: ProcessorSettings | None
) -> ProcessorSettings:
    """Return the settings of a policy that learns relative actions.

    ``stats`` holds the statistics of states, of actions, and of relative actions for each step.
    """
    names = config.action_feature_names
    if names is None:
        raise UsageError(
            "use_relative_actions needs a dataset that names the action's dimensions",
            code="policy.missing-action-names",
        )
    groups = _groups(
        names[: config.action_dim], config.relative_exclude_joints, config.relative_poses
    )
    if not any(group.relative for group in groups):
        raise UsageError(
            "use_relative_actions: relative_exclude_joints excludes all action dimensions",
            code="policy.missing-action-names",
        )
    horizon = stats[RELATIVE_STATS]["min"].shape[0]
    raw = {
        "state": {group.name: _cut(stats[STATE], group) for group in groups},
        "action": {group.name: _cut(stats[ACTION], group) for group in groups},
        "relative_action": {
            group.name: _cut(stats[RELATIVE_STATS], group) for group in groups if group.relative
        },
    }
    keys = [group.name for group in groups]
    cameras = [key.removeprefix(IMAGES) for key in config.cameras if key.startswith(IMAGES)]
    videos = (base.video_keys if base is not None else []) or cameras
    modality: dict[str, Any] = {
        "state": {"modality_keys": keys},
        "action": {
            "modality_keys": keys,
            "action_configs": [_config(group) for group in groups],
            "delta_indices": list(range(horizon)),
        },
        **({"video": {"modality_keys": videos, "delta_indices": [0]}} if videos else {}),
    }
    return replace(
        base or ProcessorSettings("the dataset's statistics"),
        modality=modality,
        raw_stats=raw,
        valid_horizon=min(config.chunk_size, horizon),
        max_action_horizon=horizon,
        video_keys=videos,
        use_percentiles=_has_percentiles(raw, groups),
        use_relative_action=True,
    )


def _groups(names: list[str], excluded: list[str], poses: list[int]) -> list[_Group]:
    parts = [part.lower() for part in excluded if part]
    groups: list[_Group] = []
    free: list[int] = []

    def close() -> None:
        if free:
            taken = any(group.name == _ARM for group in groups)
            name = f"{_ARM}_{len(groups)}" if taken else _ARM
            groups.append(_Group(name, list(free), relative=True))
            free.clear()

    for number, name in enumerate(names):
        if number in poses:
            close()
            name = _POSE if number == min(poses) else f"{_POSE}_{len(groups)}"
            pose = list(range(number, number + POSE_SIZE))
            groups.append(_Group(name, pose, relative=True, is_pose=True))
        elif any(start < number < start + POSE_SIZE for start in poses):
            continue
        elif any(part in name.lower() for part in parts):
            close()
            groups.append(_Group(_short(name), [number], relative=False))
        else:
            free.append(number)
    close()
    return groups


def _short(name: str) -> str:
    """Return a group's name for an action dimension such as ``gripper.pos``."""
    return name.removesuffix(".pos").split(".")[-1].replace(" ", "_") or "action"


def _config(group: _Group) -> dict[str, Any]:
    rep = "RELATIVE" if group.relative else "ABSOLUTE"
    if group.is_pose:
        return {"rep": rep, "type": "EEF", "format": "XYZ_ROT6D", "state_key": None}
    return {"rep": rep, "type": "NON_EEF", "format": "DEFAULT", "state_key": None}


def _cut(stats: dict[str, Tensor], group: _Group) -> dict[str, Any]:
    """Return a group's part of a vector's statistics."""
    return {
        name: value.flatten().tolist() if name == "count" else value[..., group.dimensions].tolist()
        for name, value in stats.items()
    }


def _has_percentiles(raw: dict[str, Any], groups: list[_Group]) -> bool:
    used = [raw["state"][group.name] for group in groups]
    used += [raw["action"][group.name] for group in groups if not group.relative]
    return all("q01" in entry and "q99" in entry for entry in used)
