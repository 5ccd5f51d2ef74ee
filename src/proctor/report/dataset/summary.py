"""Summary of a dataset: its metadata, cameras and file sizes, for the terminal and the page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from proctor.datasets.format.episodes import Episodes, read_episode_stats, read_episodes
from proctor.datasets.format.info import Info, video_file
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tables import Stats, read_stats
from proctor.datasets.format.tasks import read_tasks
from proctor.datasets.frames.video import probe
from proctor.datasets.numbers.statistics import aggregate
from proctor.errors import DatasetError


@dataclass(frozen=True)
class CameraSummary:
    """A camera: image size, encoding and size on disk."""

    key: str
    height: int
    width: int
    is_depth: bool
    codec: str
    """The codec of its first file (``av1``, ``h264`` ...), ``png`` for images in Parquet files, or
    why the codec is unknown."""
    pix_fmt: str
    files: int | None
    """Number of video files; None if images are in the Parquet files of frames."""
    size: int | None


@dataclass(frozen=True)
class DatasetSummary:
    """The metadata of a dataset, and the sizes of its files."""

    root: Path
    info: Info
    episodes: Episodes
    tasks: tuple[str, ...]
    stats: Stats
    cameras: tuple[CameraSummary, ...]
    sizes: dict[str, tuple[int, int]]
    """Files and bytes of the folders meta, data and videos."""

    @property
    def name(self) -> str:
        """Parent folder and folder, as in a Hub repo id."""
        path = self.root.resolve()
        return f"{path.parent.name}/{path.name}" if path.parent.name else path.name

    def episodes_by_task(self) -> list[tuple[str, int]]:
        """Return every task with its number of episodes, most first."""
        done = Counter(task for tasks in self.episodes.tasks for task in set(tasks))
        known = dict.fromkeys((*self.tasks, *done))
        return sorted(((task, done[task]) for task in known), key=lambda pair: -pair[1])


def read_summary(root: Path) -> DatasetSummary:
    """Read the summary of the dataset in ``root``."""
    info = read_info(root)
    episodes = read_episodes(root, info)
    stats = read_stats(root)
    if not stats and (per_episode := read_episode_stats(root, info)):
        stats = aggregate(per_episode)  # v2.1 has only statistics per episode
    return DatasetSummary(
        root,
        info,
        episodes,
        read_tasks(root, info),
        stats,
        tuple(_camera(root, info, episodes, key) for key in info.cameras),
        {name: _size(root / name) for name in ("meta", "data", "videos")},
    )


def video_paths(root: Path, info: Info, episodes: Episodes, key: str) -> list[Path]:
    """Return the video files of a camera, in the order of their episodes."""
    spans = episodes.videos[key]
    numbers = dict.fromkeys(zip(spans.chunk.tolist(), spans.file.tolist(), strict=True))
    return [video_file(root, info, key, chunk, file) for chunk, file in numbers]


def _camera(root: Path, info: Info, episodes: Episodes, key: str) -> CameraSummary:
    height, width, _ = info.shape(key)
    if key in info.image_keys:
        return CameraSummary(key, height, width, info.is_depth(key), "png", "", None, None)
    paths = video_paths(root, info, episodes, key)
    codec, pix_fmt = "no videos", ""
    if paths:
        try:
            video = probe(paths[0])
            codec, pix_fmt = video.codec, video.pix_fmt
        except DatasetError:
            codec = "unreadable" if paths[0].exists() else "missing"
    size = sum(path.stat().st_size for path in paths if path.is_file())
    return CameraSummary(key, height, width, info.is_depth(key), codec, pix_fmt, len(paths), size)


def _size(folder: Path) -> tuple[int, int]:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)
