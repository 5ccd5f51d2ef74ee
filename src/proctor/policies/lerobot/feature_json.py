"""Features as LeRobot's JSON files have them: type and shape, channels first."""

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
    """Return the shape of the feature's tensors: [C, H, W] of an image."""
    if feature.kind is not FeatureKind.VISUAL:
        return feature.shape
    return (*feature.shape[-1:], *feature.shape[:-1])


def decode_features(raw: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Return ``raw`` with the features in ``fields`` as we have them, still to be converted.

    Raises:
        msgspec.ValidationError: one is none, in the words of the file.
    """
    decoded = dict(raw)
    for field in fields:
        if field in raw:
            written = msgspec.convert({field: raw[field]}, dict[str, dict[str, _Written]])[field]
            ours = {key: _feature(each) for key, each in written.items()}
            decoded[field] = msgspec.to_builtins(ours)
    return decoded


def encode_features(features: Mapping[str, Feature]) -> dict[str, Any]:
    """Return features as they stand in a file."""
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
