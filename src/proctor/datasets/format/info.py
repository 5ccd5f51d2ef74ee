"""The dataset's ``Info``, and the paths of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.errors import DatasetError, did_you_mean
from proctor.features import Feature, from_info

VERSION = "v3.0"
"""Format version that Proctor writes."""
VERSIONS = ("v3.0", "v2.1", "v2.0")
"""Format versions that Proctor reads, newest first."""
INFO_FILE = "meta/info.json"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"

DEFAULT_FEATURES: dict[str, dict[str, Any]] = {
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}
"""Features of every dataset, after its own: the time and numbers of a frame."""

_NUMBERED = re.compile(r"chunk-(\d{1,18})/file-(\d{1,18})\.parquet")


@dataclass(frozen=True, kw_only=True)
class Info:
    """The content of meta/info.json; ``features`` are its entries, unchanged and in order."""

    version: str = VERSION
    fps: int
    features: dict[str, dict[str, Any]]
    total_episodes: int = 0
    total_frames: int = 0
    total_tasks: int = 0
    chunks_size: int = 1000
    """Files per chunk folder; in v2.x, episodes per chunk folder."""
    data_files_size_in_mb: int = 100
    video_files_size_in_mb: int = 200
    data_path: str = DATA_PATH
    video_path: str | None = VIDEO_PATH
    robot_type: str | None = None
    splits: dict[str, str] = field(default_factory=dict)
    tools: list[Any] | None = None
    """Tool descriptions for language models, passed through unchanged."""

    @property
    def video_keys(self) -> tuple[str, ...]:
        """The cameras stored as video files."""
        return self._stored_as("video")

    @property
    def image_keys(self) -> tuple[str, ...]:
        """The cameras stored as PNG files inside the data files."""
        return self._stored_as("image")

    @property
    def cameras(self) -> tuple[str, ...]:
        """All cameras, in the order of the features."""
        return tuple(k for k, e in self.features.items() if e["dtype"] in ("image", "video"))

    @property
    def columns(self) -> tuple[str, ...]:
        """The features stored as columns of the data files: all except videos."""
        return tuple(key for key, entry in self.features.items() if entry["dtype"] != "video")

    @property
    def is_v2(self) -> bool:
        """Whether the version is 2.x, in which every episode has its own files."""
        return self.version.startswith("v2.")

    def feature(self, key: str) -> Feature:
        """Return a camera, state or action as a ``Feature``."""
        found = from_info(key, self.entry(key))
        if found is None:
            raise DatasetError(
                f"{key} is neither an observation nor an action",
                code="dataset.not-observation-or-action",
            )
        return found

    def entry(self, key: str) -> dict[str, Any]:
        """Return the entry of feature ``key`` in info.json."""
        if key not in self.features:
            hint = did_you_mean(key, self.features) or f" (it has {', '.join(self.features)})"
            raise DatasetError(
                f"the dataset has no feature {key!r}{hint}", code="dataset.unknown-feature"
            )
        return self.features[key]

    def dtype(self, key: str) -> str:
        """Return a feature's dtype: a NumPy name, or string, image, video or language."""
        return str(self.entry(key)["dtype"])

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of a feature in one frame; for a camera: height, width, channels."""
        if self.dtype(key) in ("image", "video"):
            return self.feature(key).shape
        return tuple(self.entry(key)["shape"])

    def is_depth(self, key: str) -> bool:
        """Tell whether a camera records depth; older files store that in other places."""
        entry = self.entry(key)
        blocks = (entry.get("info"), entry.get("video_info"))
        return any(
            bool(block.get("is_depth_map") or block.get("video.is_depth_map"))
            for block in blocks
            if isinstance(block, dict)
        )

    def _stored_as(self, dtype: str) -> tuple[str, ...]:
        return tuple(key for key, entry in self.features.items() if entry["dtype"] == dtype)


def with_axis(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a feature's entry for writing: a scalar gets shape [1], as LeRobot rejects [].

    The data columns are the same for both shapes.
    """
    return {**entry, "shape": [1]} if entry.get("shape") in ([], ()) else dict(entry)


def data_file(root: Path, info: Info, chunk: int, file: int) -> Path:
    """Return the path of a data file; in v2.x, ``file`` is the episode's number."""
    return root / _filled(info.data_path, info, chunk, file)


def video_file(root: Path, info: Info, key: str, chunk: int, file: int) -> Path:
    """Return the path of a video of camera ``key``; in v2.x, ``file`` is the episode's number."""
    if info.video_path is None:
        raise DatasetError(
            f"{root / INFO_FILE}: it has videos ({key}) but no video_path",
            code="dataset.invalid-info",
        )
    return root / _filled(info.video_path, info, chunk, file, key)


def episodes_file(root: Path, chunk: int, file: int) -> Path:
    """Return the path of a file of the episodes table (v3.0)."""
    return root / EPISODES_PATH.format(chunk_index=chunk, file_index=file)


def episode_files(root: Path) -> list[Path]:
    """Return the files of the episodes table, sorted by chunk and file number."""
    folder = root / "meta/episodes"
    found = [
        (int(match[1]), int(match[2]), path)
        for path in folder.glob("chunk-*/file-*.parquet")
        if (match := _NUMBERED.fullmatch(path.relative_to(folder).as_posix()))
    ]
    return [path for _, _, path in sorted(found)]


def _filled(template: str, info: Info, chunk: int, file: int, key: str = "") -> str:
    numbers = ("episode_chunk", "episode_index") if info.is_v2 else ("chunk_index", "file_index")
    return template.format(**dict(zip(numbers, (chunk, file), strict=True)), video_key=key)
