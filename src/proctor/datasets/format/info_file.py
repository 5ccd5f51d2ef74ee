"""Read and write ``meta/info.json``.

The file is untrusted: every number is bounded, and no path template or feature name may lead out
of the dataset's folder. No memory is allocated by its numbers alone.
"""

from __future__ import annotations

import json
import re
import string
from pathlib import Path, PurePosixPath
from typing import Any

from proctor.datasets.format.info import (
    DATA_PATH,
    DEFAULT_FEATURES,
    INFO_FILE,
    VERSION,
    VERSIONS,
    Info,
)
from proctor.errors import DatasetError, strip_control_codes
from proctor.system.files import atomic_write, read_regular_file, refuse_unreadable, require_utf8

_NUMBERS = re.compile(r"bool|float(16|32|64)|u?int(8|16|32|64)")
_COUNTS = (re.compile(r"u?int(8|16|32|64)"), re.compile(r"float(16|32|64)|u?int(8|16|32|64)"))
"""Types of the default features: integers, and floats for ``timestamp``."""
_OTHERS = ("string", "image", "video", "language")
_WIDTH, _NO_WIDTH = re.compile(r"(0?[1-9]?d)?"), re.compile("")
"""Allowed format of a number in a path template, such as ``03d``."""
_MOST = 2**40
"""Largest value of any count."""
_MOST_FEATURES, _MOST_NUMBERS, _LONGEST_NAME = 1000, 2**26, 200
"""Limits: features of a dataset, elements of a feature in a frame, characters of a name."""
_LONGEST_TEMPLATE = 1000
_NO_NAME = re.compile(r"[\\\x00-\x1f]")
"""Characters that are not allowed in names and paths."""
_MOST_INFO_BYTES = 16 * 2**20


def read_info(root: Path) -> Info:
    """Read meta/info.json of the dataset in ``root``."""
    path = root / INFO_FILE
    require_utf8(root)
    if not root.is_dir():
        raise DatasetError(f"{root}: no such folder", code="dataset.not-found")
    try:
        found = json.loads(read_regular_file(path, _MOST_INFO_BYTES))
    except FileNotFoundError:
        raise DatasetError(
            f"{root} is not a dataset: it has no {INFO_FILE}", code="dataset.not-found"
        ) from None
    except OSError as error:
        raise not_readable(path, error) from None
    except (ValueError, RecursionError) as error:  # ValueError: also invalid UTF-8
        raise DatasetError(
            f"{path} is not JSON: {strip_control_codes(str(error), 200)}",
            code="dataset.invalid-json",
        ) from None
    if not isinstance(found, dict):
        raise DatasetError(
            f"{path} is not a dataset's info file: expected a JSON object",
            code="dataset.invalid-info",
        )
    return _checked(path, found)


def not_readable(path: Path, error: OSError) -> DatasetError:
    """Return the error for a file that cannot be read because of what it is."""
    refuse_unreadable(path, error)
    return DatasetError(f"{path}: {error.strerror or error}", code="dataset.not-readable")


def write_info(root: Path, info: Info) -> None:
    """Write meta/info.json atomically.

    Raises:
        DatasetError: ``info`` is invalid for readers; nothing is written.
        OSError: it cannot be written.
    """
    path = root / INFO_FILE
    said = {
        "codebase_version": info.version,
        "fps": info.fps,
        "features": info.features,
        "total_episodes": info.total_episodes,
        "total_frames": info.total_frames,
        "total_tasks": info.total_tasks,
        "chunks_size": info.chunks_size,
        "data_files_size_in_mb": info.data_files_size_in_mb,
        "video_files_size_in_mb": info.video_files_size_in_mb,
        "data_path": info.data_path,
        "video_path": info.video_path if info.video_keys else None,
        "robot_type": info.robot_type,
        "splits": info.splits,
        **({} if info.tools is None else {"tools": info.tools}),
    }
    content = json.dumps(said, indent=4, ensure_ascii=False).encode()
    _checked(path, json.loads(content))
    atomic_write(path, content)


def _checked(path: Path, said: dict[str, Any]) -> Info:
    version = said.get("codebase_version")
    if version not in VERSIONS:
        raise DatasetError(
            f"{path}: version {strip_control_codes(repr(version), 80)} is unknown; Proctor reads "
            f"{', '.join(VERSIONS)}",
            code="dataset.unknown-version",
        )
    fps = said.get("fps")
    if isinstance(fps, float) and fps.is_integer():  # in some v2.x files
        fps = int(fps)
    info = Info(
        version=version,
        fps=_whole(path, "fps", fps, least=1, most=100_000),
        features=_features(path, said.get("features")),
        **{
            name: _whole(path, name, said.get(name, 0))
            for name in ("total_episodes", "total_frames", "total_tasks")
        },
        **{
            name: _whole(path, name, said.get(name, default), least=1)
            for name, default in (
                ("chunks_size", 1000),
                ("data_files_size_in_mb", 100),
                ("video_files_size_in_mb", 200),
            )
        },
        robot_type=None if said.get("robot_type") is None else str(said["robot_type"]),
        splits=_splits(said.get("splits")),
        tools=said["tools"] if isinstance(said.get("tools"), list) else None,
        data_path=_template(path, "data_path", said.get("data_path", DATA_PATH), version),
        video_path=None
        if said.get("video_path") is None
        else _template(path, "video_path", said["video_path"], version),
    )
    if info.video_keys and info.video_path is None:
        raise DatasetError(
            f"{path}: it has videos ({info.video_keys[0]}) but no video_path",
            code="dataset.invalid-info",
        )
    return info


def _whole(path: Path, name: str, value: Any, *, least: int = 0, most: int = _MOST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        shown = strip_control_codes(repr(value), 60)
        raise DatasetError(
            f"{path}: {name} is {shown}, expected a number from {least} to {most}",
            code="dataset.invalid-info",
        )
    return value


def _splits(found: Any) -> dict[str, str]:
    if not isinstance(found, dict):  # informative only
        return {}
    return {str(name): str(span) for name, span in found.items()}


def _features(path: Path, found: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(found, dict) or not found or len(found) > _MOST_FEATURES:
        raise DatasetError(
            f"{path}: features must be an object of 1 to {_MOST_FEATURES} entries",
            code="dataset.invalid-info",
        )
    for key, entry in found.items():
        _check_feature(path, key, entry)
    return found


def _check_feature(path: Path, key: str, entry: Any) -> None:
    where = f"{path}: feature {strip_control_codes(repr(key), 80)}"
    if (
        not 0 < len(key) <= _LONGEST_NAME
        or _NO_NAME.search(key)
        or "/" in key
        or key in (".", "..")
    ):
        raise DatasetError(
            f"{where} has a name that cannot be a folder name", code="dataset.invalid-name"
        )
    if not isinstance(entry, dict):
        raise DatasetError(f"{where} is not an object", code="dataset.invalid-info")
    dtype, shape, names = entry.get("dtype"), entry.get("shape"), entry.get("names")
    if not isinstance(dtype, str) or not (dtype in _OTHERS or _NUMBERS.fullmatch(dtype)):
        raise DatasetError(
            f"{where} has dtype {strip_control_codes(repr(dtype), 60)}, which is unknown",
            code="dataset.invalid-info",
        )
    if not isinstance(shape, list) or len(shape) > 5:
        raise DatasetError(
            f"{where} has shape {strip_control_codes(repr(shape), 60)}, expected 1 to 5 sizes",
            code="dataset.invalid-info",
        )
    size = 1
    for side in shape:
        size *= _whole(path, f"a side of {key}", side, least=1, most=_MOST_NUMBERS)
    if size > _MOST_NUMBERS:
        raise DatasetError(
            f"{where} has {size} elements per frame, expected at most {_MOST_NUMBERS}",
            code="dataset.invalid-info",
        )
    if key in DEFAULT_FEATURES and not (
        _COUNTS[key == "timestamp"].fullmatch(dtype) and shape in ([], [1])
    ):
        raise DatasetError(
            f"{where} is {dtype} {shape}, expected one integer per frame (or a float timestamp)",
            code="dataset.invalid-info",
        )
    if dtype in ("image", "video") and (len(shape) != 3 or not _is_axes(names)):
        raise DatasetError(
            f"{where} is a camera whose shape or names do not have three entries",
            code="dataset.invalid-info",
        )
    groups = list(names.values()) if isinstance(names, dict) else [names or []]
    if not all(isinstance(group, list) for group in groups):
        raise DatasetError(f"{where} has names that are not a list", code="dataset.invalid-info")


def _is_axes(names: Any) -> bool:
    return names is None or (isinstance(names, list) and len(names) == 3)


def _template(path: Path, name: str, template: Any, version: str) -> str:
    """Return a path template that cannot leave the folder, fill memory or read attributes."""
    bad = DatasetError(
        f"{path}: {name} is {strip_control_codes(repr(template), 120)}, which is not a valid "
        "path template",
        code="dataset.invalid-info",
    )
    if not isinstance(template, str) or len(template) > _LONGEST_TEMPLATE:
        raise bad
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        raise bad from None
    v3 = version == VERSION
    numbers = ("chunk_index", "file_index") if v3 else ("episode_chunk", "episode_index")
    words = () if name == "data_path" else ("video_key",)
    for _, field, spec, conversion in parts:
        form = _WIDTH if field in numbers else _NO_WIDTH
        known = field is None or field in (*numbers, *words)
        if not known or conversion or not form.fullmatch(spec or ""):
            raise bad
    fields = {field for _, field, _, _ in parts}
    literal = "".join(text + ("x" if field else "") for text, field, _, _ in parts)
    pure = PurePosixPath(literal)
    leads_out = pure.is_absolute() or ".." in pure.parts or _NO_NAME.search(literal)
    if (
        leads_out or not {numbers[1], *words} <= fields
    ):  # without the number, files would share a path
        raise bad
    return template
