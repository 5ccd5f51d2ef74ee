"""The streaming order of frames, computed from the seed and the episodes table.

No data or video file is read. A stream can therefore continue at any position, and knows the next
files before it fetches them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from proctor.datasets.format.episodes import Episodes
from proctor.features import Array

_DRAWN_AT_ONCE = 4096
"""Random numbers per call; one call per frame would dominate the cost."""


@dataclass(frozen=True)
class Shard:
    """Episodes that share a data file and one video file per camera."""

    data: tuple[int, int]
    """Chunk and file number of the data file."""
    videos: tuple[tuple[str, int, int], ...]
    """Camera, chunk and file number of each video."""
    positions: Array
    """Positions of its frames among all chosen episodes, int64 [n]."""


def shards_of(episodes: Episodes, chosen: Array) -> list[Shard]:
    """Group the ``chosen`` episodes into shards, ordered by their first episodes."""
    ends = np.cumsum(episodes.length[chosen])
    found: dict[tuple[int, ...], list[Array]] = {}
    for place, key in enumerate(_files(episodes, chosen)):
        end = int(ends[place])
        length = int(episodes.length[chosen[place]])
        if length:
            found.setdefault(key, []).append(np.arange(end - length, end))
    shards = []
    for (chunk, file, *rest), parts in found.items():
        places = zip(episodes.videos, rest[::2], rest[1::2], strict=True)
        shards.append(Shard((chunk, file), tuple(places), np.concatenate(parts)))
    return shards


def _files(episodes: Episodes, chosen: Array) -> Iterator[tuple[int, ...]]:
    """Yield the chunk and file of each episode's data file, then of each camera."""
    columns = [episodes.data_chunk, episodes.data_file]
    for spans in episodes.videos.values():
        columns += [spans.chunk, spans.file]
    yield from map(tuple, np.stack(columns, axis=1)[chosen].tolist())


def shuffled(shards: Sequence[Shard], seed: int, epoch: int, buffer: int) -> Iterator[int]:
    """Yield the positions of one epoch: shards in random order, through a shuffle buffer.

    The buffer holds positions, not frames, so a large one costs no memory. A new position replaces
    a random one; a buffer of one keeps the order inside the shards.
    """
    turns, places = np.random.default_rng([seed, epoch]).spawn(2)
    chance = _uniform(places)
    held: list[int] = []
    for turn in turns.permutation(len(shards)).tolist():
        for position in shards[turn].positions.tolist():
            if len(held) < buffer:
                held.append(position)
                continue
            place = int(next(chance) * buffer)
            yield held[place]
            held[place] = position
    while held:
        place = int(next(chance) * len(held))
        held[place], held[-1] = held[-1], held[place]
        yield held.pop()


def _uniform(generator: np.random.Generator) -> Iterator[float]:
    while True:
        yield from generator.random(_DRAWN_AT_ONCE).tolist()
