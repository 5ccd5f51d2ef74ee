"""Datasets that are wrong in one way: copies of a good one, changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.unit.datasets.making import GOLDEN, TOP, turn_old

VIDEO, IMAGES = GOLDEN / "video3ep", GOLDEN / "image1ep"
"""Written by LeRobot: three episodes with a camera as AV1 video; one with pictures in its table."""
CAMERA = TOP
DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
MOVIE = f"videos/{CAMERA}/chunk-000/file-000.mp4"
TASKS, INFO, STATS = "meta/tasks.parquet", "meta/info.json", "meta/stats.json"

Damage = Callable[[Path], None]


def copy_of(source: Path, folder: Path, *damages: Damage) -> Path:
    """Return a copy of a dataset in ``folder``, damaged."""
    root = folder / source.name
    shutil.copytree(source, root)
    for damage in damages:
        damage(root)
    return root


def json_with(file: str, change: Callable[[Any], None]) -> Damage:
    """Return the damage that changes what a JSON file says."""

    def damage(root: Path) -> None:
        said = json.loads((root / file).read_text())
        change(said)
        (root / file).write_text(json.dumps(said))

    return damage


def column_with(file: str, name: str, change: Callable[[list[Any]], None]) -> Damage:
    """Return the damage that changes the values of one column of a table."""

    def damage(root: Path) -> None:
        table = pq.read_table(root / file)
        values = table[name].to_pylist()
        change(values)
        place = table.column_names.index(name)
        column = pa.array(values, table.schema.field(name).type)
        pq.write_table(table.set_column(place, table.schema.field(name), column), root / file)

    return damage


def table_with(file: str, change: Callable[[pa.Table], pa.Table]) -> Damage:
    """Return the damage that changes a table as a whole."""

    def damage(root: Path) -> None:
        pq.write_table(change(pq.read_table(root / file)), root / file)

    return damage


def entry(place: Any, value: Any) -> Callable[[Any], None]:
    """Return the change that puts ``value`` at ``place`` of a list or an object."""

    def change(values: Any) -> None:
        values[place] = value

    return change


def bytes_with(file: str, change: Callable[[bytes], bytes]) -> Damage:
    """Return the damage that changes the bytes of a file."""

    def damage(root: Path) -> None:
        (root / file).write_bytes(change((root / file).read_bytes()))

    return damage


def removed(file: str) -> Damage:
    """Return the damage that takes a file away."""
    return lambda root: (root / file).unlink()


def copied(file: str, to: str) -> Damage:
    """Return the damage that leaves a copy of a file somewhere."""

    def damage(root: Path) -> None:
        (root / to).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / file, root / to)

    return damage


def as_v2(source: Path, root: Path, version: str) -> Path:
    """Return the dataset as v2.1, which has statistics of episodes only, or v2.0 has it."""
    shutil.copytree(source, root)
    lines = [_stats_line(row) for row in pq.read_table(root / EPISODES).to_pylist()]
    turn_old(root, version)
    if version == "v2.1":
        (root / "meta/episodes_stats.jsonl").write_text("\n".join(map(json.dumps, lines)))
        (root / STATS).unlink()
    return root


def _stats_line(row: dict[str, Any]) -> dict[str, Any]:
    stats: dict[str, dict[str, Any]] = {}
    for name, value in row.items():
        if name.startswith("stats/"):
            key, _, which = name.removeprefix("stats/").rpartition("/")
            stats.setdefault(key, {})[which] = value
    return {"episode_index": row["episode_index"], "stats": stats}
