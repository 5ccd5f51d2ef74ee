"""Channels and frame rate of the dataset that a checkpoint was trained on, where they are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.features import ACTION, STATE, from_info
from proctor.policies.lerobot.checkpoint.location import read_json

_INFO = "meta/info.json"


@dataclass(frozen=True)
class TrainedChannels:
    """Names and units of the numbers of ``action`` and ``observation.state``, where known."""

    names: Mapping[str, tuple[str, ...]]
    """Key of the feature -> channel names in order."""
    units: Mapping[str, tuple[str, ...]]
    """Key of the feature -> the unit of each channel."""


UNKNOWN_CHANNELS = TrainedChannels({}, {})


def trained_channels(folder: Path) -> TrainedChannels:
    """Return the channels of a checkpoint's dataset; empty if its dataset is not here any more.

    The dataset's folder is named by the training's record or by LeRobot's ``train_config.json``.
    """
    for root in _dataset_roots(folder):
        entries = _read(root / _INFO).get("features")
        if isinstance(entries, Mapping):
            return _channels(entries)
    return UNKNOWN_CHANNELS


def _channels(entries: Mapping[str, Any]) -> TrainedChannels:
    names: dict[str, tuple[str, ...]] = {}
    units: dict[str, tuple[str, ...]] = {}
    for key in (ACTION, STATE):
        entry = entries.get(key)
        if not isinstance(entry, Mapping) or "shape" not in entry or "dtype" not in entry:
            continue
        feature = from_info(key, entry)
        if feature is not None and feature.names is not None:
            names[key] = feature.names
        info = entry.get("info")
        stated = info.get("units") if isinstance(info, Mapping) else None
        if isinstance(stated, list):
            units[key] = tuple(str(unit) for unit in stated)
    return TrainedChannels(names, units)


def _dataset_roots(folder: Path) -> Iterator[Path]:
    record = _read(folder.resolve().parent.parent.parent / "train.json")
    for settings in (record.get("resolved"), _read(folder / "train_config.json")):
        dataset = settings.get("dataset") if isinstance(settings, Mapping) else None
        root = dataset.get("root") if isinstance(dataset, Mapping) else None
        if isinstance(root, str):
            yield Path(root)


def _read(file: Path) -> dict[str, Any]:
    """Return a JSON object; empty if the file is missing or unreadable: the check is optional."""
    try:
        return read_json(file) if file.is_file() else {}
    except (UsageError, OSError):
        return {}


def trained_fps(folder: Path) -> int | None:
    """Return the frames per second of a checkpoint's dataset; None if unknown.

    Read from the training's record, or from the dataset folder that LeRobot's
    ``train_config.json`` names, if it still exists.
    """
    record = _read(folder.resolve().parent.parent.parent / "train.json").get("dataset")
    if isinstance(record, dict):
        return _rate(record)
    dataset = _read(folder / "train_config.json").get("dataset")
    root = dataset.get("root") if isinstance(dataset, dict) else None
    return _rate(_read(Path(root) / "meta/info.json")) if isinstance(root, str) else None


def _rate(found: dict[str, Any]) -> int | None:
    fps = found.get("fps")
    return round(fps) if isinstance(fps, int | float) and 0 < fps < 1e6 else None
