"""Observations and their spaces under the names of LeRobot's environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from proctor.features import (
    ENVIRONMENT_STATE,
    IMAGE,
    IMAGES,
    STATE,
    Feature,
    FeatureKind,
    Observation,
)

_RAW_NAMES = {
    IMAGE: "pixels",
    STATE: "agent_pos",
    ENVIRONMENT_STATE: "environment_state",
}


def to_lerobot_names(observation: Observation) -> dict[str, Any]:
    """Rename policy keys to LeRobot's raw names; named cameras go into a ``pixels`` dict."""
    raw: dict[str, Any] = {}
    for key, value in observation.items():
        _put_raw(raw, key, value)
    return raw


def from_lerobot_names(raw: dict[str, Any], keys: Sequence[str]) -> Observation:
    """Invert ``to_lerobot_names`` for ``keys``."""
    return {
        key: raw["pixels"][key.removeprefix(IMAGES)]
        if key.startswith(IMAGES)
        else raw[_raw_name(key)]
        for key in keys
    }


def _put_raw(raw: dict[str, Any], key: str, value: Any) -> None:
    if key.startswith(IMAGES):
        raw.setdefault("pixels", {})[key.removeprefix(IMAGES)] = value
    else:
        raw[_raw_name(key)] = value


def _raw_name(key: str) -> str:
    return _RAW_NAMES.get(key, key.removeprefix("observation."))


def observation_space(features: dict[str, Feature]) -> spaces.Dict:
    """Return the gymnasium space of such observations."""
    nested: dict[str, Any] = {}
    for key, feature in features.items():
        _put_raw(nested, key, _box(feature))
    return spaces.Dict({k: spaces.Dict(v) if isinstance(v, dict) else v for k, v in nested.items()})


def _box(feature: Feature) -> spaces.Box:
    if feature.kind in (FeatureKind.VISUAL, FeatureKind.FILM):
        return spaces.Box(0, 255, feature.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, feature.shape, np.dtype(feature.dtype).type)
