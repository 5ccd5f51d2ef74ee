"""Check the language columns of a recorded frame.

``language_persistent`` holds messages that are valid from a timestamp on (a subtask, a plan).
``language_events`` holds messages at one frame (an interjection, a question about an image).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from proctor.errors import DatasetError, did_you_mean, strip_control_codes

PERSISTENT, EVENTS = "language_persistent", "language_events"
_STYLES = {
    PERSISTENT: ("subtask", "plan", "memory", "motion", "task_aug"),
    EVENTS: ("interjection", "vqa", "trace"),
}
_OF_A_CAMERA = ("vqa", "trace")
_TEXTS = ("content", "style", "camera")
_FIELDS = {
    PERSISTENT: ("role", "content", "style", "timestamp", "camera", "tool_calls"),
    EVENTS: ("role", "content", "style", "camera", "tool_calls"),
}


def check_language_column(key: str, value: Any, cameras: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the messages of a frame's column ``key`` with all fields; missing ones are None."""
    if not isinstance(value, list | tuple):
        raise DatasetError(
            f"{key}: expected a list of messages, got {type(value).__name__}",
            code="dataset.invalid-language",
        )
    return [_checked(key, saying, cameras) for saying in value]


def _checked(key: str, saying: Any, cameras: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(saying, Mapping):
        raise DatasetError(
            f"{key}: a message must be {{role, content, ...}}, got {_shown(saying)}",
            code="dataset.invalid-language",
        )
    fields = _FIELDS[key]
    for name in saying:
        if name not in fields:
            hint = did_you_mean(str(name), fields)
            raise DatasetError(
                f"{key}: {_shown(name)} is an unknown field{hint} ({', '.join(fields)})",
                code="dataset.invalid-language",
            )
    if not isinstance(saying.get("role"), str):
        raise DatasetError(
            f"{key}: role must be a string, got {_shown(saying.get('role'))}",
            code="dataset.invalid-language",
        )
    for name in _TEXTS:
        if not isinstance(saying.get(name), str | None):
            raise DatasetError(
                f"{key}: {name} must be a string, got {_shown(saying[name])}",
                code="dataset.invalid-language",
            )
    made = {name: saying.get(name) for name in fields}
    _check_style(key, made["style"], made["camera"], cameras)
    if key == PERSISTENT:
        made["timestamp"] = _moment(key, made["timestamp"])
    made["tool_calls"] = _as_json(key, made["tool_calls"])
    return made


def _check_style(key: str, style: str | None, camera: str | None, cameras: tuple[str, ...]) -> None:
    """Styles that nobody knows are taken: a project may have its own."""
    other = EVENTS if key == PERSISTENT else PERSISTENT
    if style in _STYLES[other]:
        raise DatasetError(f"{key}: {style} belongs in {other}", code="dataset.invalid-language")
    if style in _OF_A_CAMERA and camera is None:
        raise DatasetError(
            f"{key}: {style} is about an image: it needs a camera", code="dataset.invalid-language"
        )
    if camera is not None and camera not in cameras:
        hint = did_you_mean(camera, cameras)
        raise DatasetError(
            f"{key}: the dataset has no camera {_shown(camera)}{hint}",
            code="dataset.invalid-language",
        )


def _moment(key: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise DatasetError(
            f"{key}: timestamp must be non-negative seconds, got {_shown(value)}",
            code="dataset.invalid-language",
        )
    return float(value)


def _as_json(key: str, calls: Any) -> list[str] | None:
    """Return tool calls as the JSON strings that the data file stores."""
    if calls is None:
        return None
    if not isinstance(calls, list | tuple):
        raise DatasetError(
            f"{key}: tool_calls must be a list, got {_shown(calls)}",
            code="dataset.invalid-language",
        )
    try:
        return [json.dumps(call, ensure_ascii=False, allow_nan=False) for call in calls]
    except (TypeError, ValueError):
        raise DatasetError(
            f"{key}: tool_calls must be JSON values, got {_shown(calls)}",
            code="dataset.invalid-language",
        ) from None


def _shown(value: Any) -> str:
    return strip_control_codes(repr(value), 60)
