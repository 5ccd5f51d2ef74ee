"""Check that images in data files can be decoded and have the right size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proctor.datasets.checks.decoding import MeanColours
from proctor.datasets.checks.findings import DatasetFinding, FindingLevel, episodes_text
from proctor.datasets.checks.table import EpisodeTable
from proctor.datasets.format.arrow import pq
from proctor.datasets.format.info import Info, data_file
from proctor.datasets.format.tables import UNREADABLE, open_table, refuse_oversized
from proctor.datasets.frames.images import decode_images
from proctor.errors import DatasetError
from proctor.system.files import refuse_unreadable

_AT_ONCE = 64
"""Rows whose images are in memory at a time."""


def check_images(
    root: Path, info: Info, table: EpisodeTable, key: str, colours: MeanColours
) -> Iterator[DatasetFinding]:
    """Decode every image of a camera, in all data files."""
    files = {
        data_file(root, info, int(chunk), int(file))
        for chunk, file in zip(table.chunk, table.file, strict=True)
    }
    for path in sorted(files):
        broken: dict[int, str] = {}
        for episode, reason in _broken(path, info, key, colours):
            broken.setdefault(episode, reason)
        if broken:
            where = f"{path.relative_to(root).as_posix()}, {episodes_text(list(broken))}"
            what = f"{key}: {next(iter(broken.values()))}"
            kind = "pictures.undecodable"
            yield DatasetFinding(FindingLevel.ERROR, kind, what, where, leave_out=tuple(broken))


def _broken(path: Path, info: Info, key: str, colours: MeanColours) -> Iterator[tuple[int, str]]:
    """Yield the episodes of images that are broken or have another size, and the reason."""
    names = ["episode_index", "frame_index", key]
    try:
        refuse_oversized(path, open_table(path).metadata, names)
        file = pq.ParquetFile(path, memory_map=True)
        if not set(names) <= set(file.schema_arrow.names):
            return  # another check reports the missing column
        for batch in file.iter_batches(_AT_ONCE, columns=names, use_threads=False):
            rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            for episode, frame, stored in rows:
                if not isinstance(episode, int) or not isinstance(frame, int):
                    continue  # another check reports the missing number
                what = _wrong(info, key, stored, frame, colours)
                if what is not None:
                    yield int(episode), what
    except (DatasetError, *UNREADABLE) as error:
        refuse_unreadable(path, error)
        return  # another check reports the unreadable file


def _wrong(info: Info, key: str, stored: Any, frame: int, colours: MeanColours) -> str | None:
    height, width, channels = info.shape(key)
    content = stored.get("bytes") if isinstance(stored, dict) else None
    try:
        (picture,) = decode_images(f"frame {frame}", [content], (height, width, channels))
    except DatasetError as error:
        return str(error)
    colours.decoded += 1
    colours.add(
        picture
    )  # all images: a sample of short episodes would mostly show their first frames
    return None
