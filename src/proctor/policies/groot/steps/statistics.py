"""Statistics of states and actions by group ("modality"), as GR00T's checkpoints hold them.

A checkpoint names groups of a vector, such as ``single_arm`` and ``gripper``, in a modality config:

    {"state": {"modality_keys": [...]}, "action": {"modality_keys": [...], "action_configs": [...]}}

and has minimum, maximum and quantiles of each group. Relative action groups have a row of
statistics for each step of the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.errors import UsageError
from proctor.features import STATE, Array

_SIZED_BY = ("mean", "q01", "min", "max", "std")
_EEF_FORMATS = ("xyz+rot6d", "xyz_rot6d")


@dataclass(frozen=True)
class ActionGroup:
    """One group of an action vector."""

    name: str
    part: slice
    """Its place in the vector."""
    low: Array
    """Value that is normalised to -1: [size], or [steps, size]."""
    high: Array
    relative: bool
    """Whether actions are relative to the state."""
    is_pose: bool
    """Whether it is a position and a rotation (6D), composed as transforms."""
    state: str
    """Name of the state group that relative actions refer to."""


def stats_of(raw: dict[str, Any], kind: str, key: str) -> dict[str, Any]:
    """Return the statistics of a group of ``kind``; empty if there are none."""
    groups = raw.get(kind)
    found = groups.get(key) if isinstance(groups, dict) else None
    return found if isinstance(found, dict) else {}


def group_size(entry: dict[str, Any]) -> int:
    """Return the size of a group from its statistics; 0: it has none."""
    for name in _SIZED_BY:
        value = entry.get(name)
        if isinstance(value, list) and value:
            return len(value[0]) if isinstance(value[0], list) else len(value)
    return 0


def modality_keys(modality: dict[str, Any], kind: str) -> list[str]:
    """Return the names of the groups of ``kind``: state, action or video."""
    section = modality.get(kind)
    keys = section.get("modality_keys", []) if isinstance(section, dict) else []
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []


def horizon_of(modality: dict[str, Any], kind: str) -> int | None:
    """Return the number of time steps of ``kind``; None: it is not stated."""
    section = modality.get(kind)
    steps = section.get("delta_indices", []) if isinstance(section, dict) else []
    return len(steps) or None if isinstance(steps, list) else None


def state_parts(raw: dict[str, Any], modality: dict[str, Any]) -> dict[str, slice]:
    """Return the place of each state group in the state vector."""
    return _parts(raw, modality, "state")


def _parts(raw: dict[str, Any], modality: dict[str, Any], kind: str) -> dict[str, slice]:
    found, start = {}, 0
    for key in modality_keys(modality, kind):
        size = group_size(stats_of(raw, kind, key))
        if size:
            found[key] = slice(start, start + size)
            start += size
    return found


def action_groups(
    raw: dict[str, Any], modality: dict[str, Any], where: str, *, percentiles: bool, relative: bool
) -> list[ActionGroup]:
    """Return the groups of an action vector with their statistics.

    ``percentiles``: use the 1st and 99th percentile instead of minimum and maximum, except for
    relative groups. ``relative`` False: the checkpoint's relative groups hold absolute actions.
    """
    section = modality.get("action")
    configs = section.get("action_configs", []) if isinstance(section, dict) else []
    keys = modality_keys(modality, "action")
    parts = _parts(raw, modality, "action")
    return [
        _group(raw, key, parts[key], _config_at(configs, n), where, (percentiles, relative))
        for n, key in enumerate(keys)
        if key in parts
    ]


def _config_at(configs: Any, number: int) -> dict[str, Any]:
    if not isinstance(configs, list) or number >= len(configs):
        return {}
    return configs[number] if isinstance(configs[number], dict) else {}


def _group(
    raw: dict[str, Any],
    key: str,
    part: slice,
    stated: dict[str, Any],
    where: str,
    how: tuple[bool, bool],
) -> ActionGroup:
    percentiles, allowed = how
    relative = allowed and str(stated.get("rep")).lower() == "relative"
    kind, form = str(stated.get("type")).lower(), str(stated.get("format")).lower()
    is_pose = relative and kind == "eef"
    if relative and not (kind == "non_eef" or (is_pose and form in _EEF_FORMATS)):
        raise UsageError(
            f"{where}: the relative action group {key!r} has type {kind} and format {form} "
            "(supported: non_eef, eef with xyz+rot6d)",
            code="checkpoint.unsupported-step",
        )
    of = stats_of(raw, "relative_action" if relative else "action", key)
    names = ("q01", "q99") if percentiles and not relative else ("min", "max")
    size = part.stop - part.start
    low, high = (_numbers(of.get(name), size, f"{where}: {key}.{name}") for name in names)
    state = stated.get("state_key")
    return ActionGroup(
        key, part, low, high, relative, is_pose, state if isinstance(state, str) else key
    )


def _numbers(value: Any, size: int, what: str) -> Array:
    """Return statistics as float32 [size] or [steps, size]."""
    if value is None:
        raise UsageError(f"{what} is missing", code="stats.missing")
    try:
        found = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError):
        raise UsageError(f"{what} holds no numbers", code="stats.invalid") from None
    if found.ndim not in (1, 2) or found.shape[-1] != size:
        raise UsageError(
            f"{what} has shape {list(found.shape)}, expected {size} numbers",
            code="stats.shape-mismatch",
        )
    if not np.isfinite(found).all():
        raise UsageError(f"{what} holds NaN or infinity", code="stats.invalid")
    return found


def flat_stats(
    raw: dict[str, Any], modality: dict[str, Any], where: str, *, percentiles: bool, relative: bool
) -> dict[str, dict[str, list[float]]]:
    """Return the statistics of state and action as flat lists, by LeRobot's feature names.

    Percentiles take the place of minimum and maximum, except for relative groups.
    """
    groups = action_groups(raw, modality, where, percentiles=percentiles, relative=relative)
    of_action = {group.name: group.relative for group in groups}
    sources = {
        STATE: [("state", key) for key in modality_keys(modality, "state")],
        "action": [
            ("relative_action" if of_action[key] else "action", key)
            for key in modality_keys(modality, "action")
            if key in of_action
        ],
    }
    found: dict[str, dict[str, list[float]]] = {}
    for feature, places in sources.items():
        for name in ("min", "max", "mean", "std"):
            values: list[float] = []
            for kind, key in places:
                quantile = {"min": "q01", "max": "q99"}.get(name, name)
                used = quantile if percentiles and kind != "relative_action" else name
                entry = stats_of(raw, kind, key)
                what = f"{where}: {key}.{used}"
                values += _numbers(entry.get(used), group_size(entry), what).ravel().tolist()
            if values:
                found.setdefault(feature, {})[name] = values
    return found
