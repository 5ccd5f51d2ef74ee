"""What one wants to know of a dataset at a glance: read once, shown by a terminal or a page."""

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
class CameraFacts:
    """A camera: the size of its pictures, how they are stored, and how much they take."""

    key: str
    height: int
    width: int
    is_depth: bool
    codec: str
    """``av1``, ``h264`` ... as its first file says; ``png`` in tables; what is wrong with it."""
    pix_fmt: str
    files: int | None
    """None where pictures lie in the tables of frames."""
    size: int | None


@dataclass(frozen=True)
class DatasetFacts:
    """A dataset's own words about itself, and what its files take."""

    root: Path
    info: Info
    episodes: Episodes
    tasks: tuple[str, ...]
    stats: Stats
    cameras: tuple[CameraFacts, ...]
    sizes: dict[str, tuple[int, int]]
    """Of the folders meta, data and videos: files and bytes."""

    @property
    def name(self) -> str:
        """What it is called: its folder, and the one above it, as on the Hub."""
        place = self.root.resolve()
        return f"{place.parent.name}/{place.name}" if place.parent.name else place.name

    def episodes_by_task(self) -> list[tuple[str, int]]:
        """Return every task and in how many episodes it is done, most first."""
        done = Counter(task for tasks in self.episodes.tasks for task in set(tasks))
        known = dict.fromkeys((*self.tasks, *done))
        return sorted(((task, done[task]) for task in known), key=lambda pair: -pair[1])


def read_facts(root: Path) -> DatasetFacts:
    """Read what the dataset in ``root`` says of itself.

    Raises:
        DatasetError: there is none, or its tables cannot be read.
    """
    info = read_info(root)
    episodes = read_episodes(root, info)
    stats = read_stats(root)
    if not stats and (per_episode := read_episode_stats(root, info)):
        stats = aggregate(per_episode)  # as of v2.1, which keeps no others
    return DatasetFacts(
        root,
        info,
        episodes,
        read_tasks(root, info),
        stats,
        tuple(_camera(root, info, episodes, key) for key in info.cameras),
        {name: _size(root / name) for name in ("meta", "data", "videos")},
    )


def video_paths(root: Path, info: Info, episodes: Episodes, key: str) -> list[Path]:
    """Return the files of a camera, in the order of the episodes in them."""
    spans = episodes.videos[key]
    numbers = dict.fromkeys(zip(spans.chunk.tolist(), spans.file.tolist(), strict=True))
    return [video_file(root, info, key, chunk, file) for chunk, file in numbers]


def _camera(root: Path, info: Info, episodes: Episodes, key: str) -> CameraFacts:
    height, width, _ = info.shape(key)
    if key in info.image_keys:
        return CameraFacts(key, height, width, info.is_depth(key), "png", "", None, None)
    paths = video_paths(root, info, episodes, key)
    codec, pix_fmt = "no videos", ""
    if paths:
        try:
            facts = probe(paths[0])
            codec, pix_fmt = facts.codec, facts.pix_fmt
        except DatasetError:
            codec = "unreadable" if paths[0].exists() else "missing"
    size = sum(path.stat().st_size for path in paths if path.is_file())
    return CameraFacts(key, height, width, info.is_depth(key), codec, pix_fmt, len(paths), size)


def _size(folder: Path) -> tuple[int, int]:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)
