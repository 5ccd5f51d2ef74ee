"""Datasets for tests: the golden ones copied, turned into older versions, and made-up ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from proctor.datasets.format.episodes import EpisodeMetadata, read_episodes, write_episodes
from proctor.datasets.format.info import DEFAULT_FEATURES, Info, data_file, video_file
from proctor.datasets.format.info_file import read_info, write_info
from proctor.datasets.format.schema import arrow_schema
from proctor.datasets.format.tasks import read_tasks, write_tasks
from proctor.datasets.frames.packets import extract

GOLDEN = Path(__file__).parents[2] / "golden/data/datasets"
TOP = "observation.images.top"


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert [key for key in one if not equal(one[key], other[key])] == []


def copied(name: str, to: Path) -> Path:
    shutil.copytree(GOLDEN / name, to)
    return to


def change(root: Path, **said: Any) -> None:
    """Change what meta/info.json says; what is None is left out."""
    path = root / "meta/info.json"
    new = {**json.loads(path.read_text()), **said}
    path.write_text(json.dumps({key: value for key, value in new.items() if value is not None}))


def turn_old(root: Path, version: str = "v2.1") -> Info:
    """Turn a v3.0 dataset of one data and one video file into what v2.x made of the same frames."""
    info = read_info(root)
    episodes = list(read_episodes(root, info))
    frames = pq.read_table(data_file(root, info, 0, 0))
    tasks = read_tasks(root, info)
    change(
        root,
        codebase_version=version,
        fps=float(info.fps),
        total_videos=len(episodes) * len(info.video_keys),
        data_path="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        video_path="videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    )
    old = read_info(root)
    for row in episodes:
        path = data_file(root, old, 0, row.index)
        pq.write_table(frames.slice(row.from_index, row.length), path)
        for key in info.video_keys:
            path = video_file(root, old, key, 0, row.index)
            path.parent.mkdir(parents=True, exist_ok=True)
            extract(video_file(root, info, key, 0, 0), [(row.from_index, row.to_index)], path)
    lines = [
        {"episode_index": row.index, "tasks": list(row.tasks), "length": row.length}
        for row in episodes
    ]
    (root / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    named = [{"task_index": i, "task": task} for i, task in enumerate(tasks)]
    (root / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, named)))
    shutil.rmtree(root / "meta/episodes")
    (root / "meta/tasks.parquet").unlink()
    data_file(root, info, 0, 0).unlink()
    for key in info.video_keys:
        shutil.rmtree(root / "videos" / key)
    return old


def make_numbers(root: Path, lengths: list[int], per_file: int = 2) -> Path:
    """Write a dataset of numbers only, ``per_file`` episodes a table, every number its own."""
    features = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": None},
        "grid": {"dtype": "int64", "shape": [2, 2], "names": None},
        "action": {"dtype": "float64", "shape": [2], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        **DEFAULT_FEATURES,
    }
    info = Info(
        fps=10,
        features=features,
        total_episodes=len(lengths),
        total_frames=sum(lengths),
        total_tasks=2,
    )
    rows, start = [], 0
    for e, n in enumerate(lengths):
        rows.append(EpisodeMetadata(e, ("a",), n, (0, e // per_file), start, start + n, {}))
        start += n
    for file in range(-(-len(lengths) // per_file)):
        table = pa.concat_tables(
            [_frames(info, row) for row in rows[file * per_file : (file + 1) * per_file]]
        )
        path = data_file(root, info, 0, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
    write_episodes(root, rows, [{} for _ in rows], 0, 0)
    write_tasks(root, ["a", "b"])
    write_info(root, info)
    return root


def _frames(info: Info, row: EpisodeMetadata) -> pa.Table:
    frame = np.arange(row.length)
    index = row.from_index + frame
    columns = {
        "observation.state": (index[:, None] + np.arange(3) / 8).astype(np.float32).tolist(),
        "grid": (index[:, None, None] + np.arange(4).reshape(2, 2)).tolist(),
        "action": (index[:, None] + np.array([0.1, 0.2])).tolist(),
        "next.reward": index.astype(np.float32),
        "timestamp": (frame / info.fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.full(row.length, row.index),
        "index": index,
        "task_index": index % 2,
    }
    schema = arrow_schema(info)
    return pa.table(
        {name: pa.array(columns[name], schema.field(name).type) for name in schema.names}
    )
