"""Encode and decode features as in LeRobot's JSON files: type and channels-first shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from proctor.features import Feature, FeatureKind


@dataclass
class _Written:
    type: Literal["STATE", "VISUAL", "ENV", "ACTION", "REWARD", "LANGUAGE"]
    shape: tuple[int, ...]


def channels_first(feature: Feature) -> tuple[int, ...]:
    """Return the shape of the feature's tensors: [C, H, W] for an image."""
    if feature.kind is not FeatureKind.VISUAL:
        return feature.shape
    return (*feature.shape[-1:], *feature.shape[:-1])


def decode_features(raw: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Return ``raw`` with the features in ``fields`` as builtins of ``Feature``.

    Raises:
        msgspec.ValidationError: one is not a feature.
    """
    decoded = dict(raw)
    for field in fields:
        if field in raw:
            written = msgspec.convert({field: raw[field]}, dict[str, dict[str, _Written]])[field]
            ours = {key: _feature(each) for key, each in written.items()}
            decoded[field] = msgspec.to_builtins(ours)
    return decoded


def encode_features(features: Mapping[str, Feature]) -> dict[str, Any]:
    """Return features as in LeRobot's JSON."""
    return {
        key: {"type": feature.kind.value, "shape": list(channels_first(feature))}
        for key, feature in features.items()
    }


def _feature(written: _Written) -> Feature:
    kind = FeatureKind(written.type)
    if kind is not FeatureKind.VISUAL:
        return Feature(kind, written.shape, "float32")
    return Feature(kind, (*written.shape[1:], *written.shape[:1]), "uint8")


def version_tuple(version: str) -> tuple[int, ...]:
    """Return "0.4.4" as (0, 4, 4)."""
    return tuple(int(part) for part in version.split("."))
