"""The rate of the demonstrations that a checkpoint was trained on, where its folder says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.policies.lerobot.location import read_json


def trained_fps(folder: Path) -> int | None:
    """Return the frames per second of the dataset of a checkpoint; None where it is not known.

    The training's own record says it, or the dataset that LeRobot's ``train_config.json`` names by
    its folder, if it still lies there.
    """
    record = _read(folder.resolve().parent.parent.parent / "train.json").get("dataset")
    if isinstance(record, dict):
        return _rate(record)
    dataset = _read(folder / "train_config.json").get("dataset")
    root = dataset.get("root") if isinstance(dataset, dict) else None
    return _rate(_read(Path(root) / "meta/info.json")) if isinstance(root, str) else None


def _read(file: Path) -> dict[str, Any]:
    """Return a JSON object; empty where there is none: nothing but a note depends on it."""
    try:
        return read_json(file) if file.is_file() else {}
    except (UsageError, OSError):
        return {}


def _rate(found: dict[str, Any]) -> int | None:
    fps = found.get("fps")
    return round(fps) if isinstance(fps, int | float) and 0 < fps < 1e6 else None
