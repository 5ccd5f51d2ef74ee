"""In which order frames are streamed: a function of the seed and of the table of episodes.

Nothing here looks at a data or a video file, so that a stream can go on at any position, and knows
which files it needs next, before it has fetched one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from proctor.datasets.format.episodes import Episodes
from proctor.features import Array

_DRAWN_AT_ONCE = 4096
"""Random numbers drawn in one call: one call a frame costs more than everything else here."""


@dataclass(frozen=True)
class Shard:
    """Episodes that lie in the same files: one of numbers, one of each camera."""

    data: tuple[int, int]
    """Chunk and file of the numbers."""
    videos: tuple[tuple[str, int, int], ...]
    """Camera, chunk and file."""
    positions: Array
    """Its frames, counted over all chosen episodes, int64 [n]."""


def shards_of(episodes: Episodes, chosen: Array) -> list[Shard]:
    """Return the ``chosen`` episodes as shards, in the order in which their first episodes come."""
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
    """Yield chunk and file of each episode's numbers, then of each camera."""
    columns = [episodes.data_chunk, episodes.data_file]
    for spans in episodes.videos.values():
        columns += [spans.chunk, spans.file]
    yield from map(tuple, np.stack(columns, axis=1)[chosen].tolist())


def shuffled(shards: Sequence[Shard], seed: int, epoch: int, buffer: int) -> Iterator[int]:
    """Yield the positions of one epoch: shards in turn, in a random order, through a buffer.

    The buffer holds positions, not frames: a large one costs no memory. A frame leaves it at random
    when the next one comes; a buffer of one keeps the order inside the shards.
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
