"""Synthetic datasets: vectors, videos, very many episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from proctor.datasets.format.episodes import EpisodeMetadata, VideoSpan, write_episodes
from proctor.datasets.format.info import DEFAULT_FEATURES, Info, data_file, video_file
from proctor.datasets.format.info_file import write_info
from proctor.datasets.format.schema import arrow_schema
from proctor.datasets.format.tables import write_stats
from proctor.datasets.format.tasks import write_tasks
from proctor.datasets.numbers.statistics import aggregate, array_stats
from proctor.datasets.writer import DatasetWriter

FPS = 30
CAMERA = "observation.images.top"
STATE: dict[str, Any] = {"dtype": "float32", "shape": [39], "names": None}
NUMBERS: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": [4], "names": None},
    "observation.environment_state": STATE,
    "action": {"dtype": "float32", "shape": [4], "names": None},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
}


def camera(size: int) -> dict[str, Any]:
    return {"dtype": "video", "shape": [size, size, 3], "names": ["height", "width", "channels"]}


def write_video(root: Path, episodes: int, length: int, size: int) -> None:
    """Write episodes of moving gradients and noise, as hard to decode as real images."""
    writer = DatasetWriter.create(root, FPS, {**NUMBERS, CAMERA: camera(size)})
    random = np.random.default_rng(0)
    down, right = np.mgrid[:size, :size]
    grain = random.integers(0, 40, (size, size, 3))
    for _ in range(episodes):
        speed = random.integers(1, 9)
        for step in range(length):
            shade = (down // 2 + right // 3 + step * speed) % 200
            picture = np.roll(grain, step * int(speed), axis=1) + shade[..., None]
            numbers = {
                key: random.normal(size=entry["shape"]).astype(np.float32)
                for key, entry in NUMBERS.items()
            }
            writer.add_frame({**numbers, CAMERA: picture.astype(np.uint8)}, task="move")
        writer.end_episode()
    writer.close()


def write_numbers(root: Path, episodes: int, length: int, with_video: bool = False) -> None:
    """Write a dataset of one data file; with ``with_video`` an empty video file is added."""
    frames = episodes * length
    entries = {**NUMBERS, **({CAMERA: camera(96)} if with_video else {}), **DEFAULT_FEATURES}
    info = Info(
        fps=FPS, features=entries, total_episodes=episodes, total_frames=frames, total_tasks=1,
        splits={"train": f"0:{episodes}"},
    )  # fmt: skip
    random = np.random.default_rng(0)
    frame = np.tile(np.arange(length), episodes)
    columns: dict[str, Any] = {
        key: random.normal(size=(frames, *entry["shape"])).astype(np.float32)
        for key, entry in NUMBERS.items()
    }
    columns |= {
        "timestamp": (frame / FPS).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.repeat(np.arange(episodes), length),
        "index": np.arange(frames),
        "task_index": np.zeros(frames, np.int64),
    }
    schema = arrow_schema(info)
    arrays = [_array(columns[field.name], field.type) for field in schema]
    path = data_file(root, info, 0, 0)
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(arrays, schema=schema), path, row_group_size=100 * length)
    _write_meta(root, info, length, columns)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if values.ndim == 1 or values.shape[1] == 1:
        return pa.array(values.ravel(), kind)
    return pa.FixedSizeListArray.from_arrays(values.ravel(), type=kind)


def _write_meta(root: Path, info: Info, length: int, columns: dict[str, Any]) -> None:
    stats = {key: array_stats(values[:length]) for key, values in columns.items()}
    videos = {key: VideoSpan(0, 0, 0.0, length / info.fps) for key in info.video_keys}
    rows = [
        EpisodeMetadata(i, ("move",), length, (0, 0), i * length, (i + 1) * length, videos)
        for i in range(info.total_episodes)
    ]
    write_episodes(root, rows, [stats] * len(rows), 0, 0)
    write_tasks(root, ["move"])
    write_stats(root, aggregate([stats]))
    write_info(root, info)
    for key in info.video_keys:
        place = video_file(root, info, key, 0, 0)
        place.parent.mkdir(parents=True)
        place.touch()
