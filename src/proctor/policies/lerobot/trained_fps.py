"""Frame rate of the dataset that a checkpoint was trained on, if its folder states it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.policies.lerobot.location import read_json


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


def _read(file: Path) -> dict[str, Any]:
    """Return a JSON object; empty if it is missing or unreadable, since only a note needs it."""
    try:
        return read_json(file) if file.is_file() else {}
    except (UsageError, OSError):
        return {}


def _rate(found: dict[str, Any]) -> int | None:
    fps = found.get("fps")
    return round(fps) if isinstance(fps, int | float) and 0 < fps < 1e6 else None
