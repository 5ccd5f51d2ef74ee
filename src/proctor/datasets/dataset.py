"""Datasets, read as they lie on disk: frames by position, whole batches at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.columns import TableFile
from proctor.datasets.depth import CODES, DepthScale
from proctor.datasets.episodes import Episodes, read_episode_stats
from proctor.datasets.info import Info, data_file, video_file
from proctor.datasets.pictures import decode_pictures
from proctor.datasets.statistics import aggregate
from proctor.datasets.store import Columns
from proctor.datasets.tables import Stats, read_stats
from proctor.datasets.video import RGB, FrameReader, FrameRequest
from proctor.datasets.windows import Moments
from proctor.errors import DatasetError
from proctor.features import ACTION, ActionSpec, Array, FeatureKind, Interface, from_info

_OBSERVED = (FeatureKind.STATE, FeatureKind.ENV, FeatureKind.VISUAL, FeatureKind.LANGUAGE)


@dataclass(frozen=True)
class Source:
    """A dataset on disk: its folder and what its metadata say."""

    name: str
    root: Path
    info: Info
    episodes: Episodes
    tasks: tuple[str, ...]


class Dataset:
    """The frames of a dataset, or of some of its episodes.

    ``ds[i]`` is one frame and ``ds.batch(positions)`` many, stacked; positions count the frames of
    the chosen episodes. A dataset may be handed to other processes.
    """

    def __init__(
        self, source: Source, chosen: Array, offsets: dict[str, Array], frames: FrameReader
    ) -> None:
        self.name, self.root, self.info = source.name, source.root, source.info
        self.episodes, self.tasks = source.episodes, source.tasks
        self.chosen = chosen
        """The episodes that are read, in order."""
        self._offsets, self._frames = offsets, frames
        self._length = source.episodes.length[chosen]
        self._ends = np.cumsum(self._length)
        self._files, self._first_row = _placed(source, chosen)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def spans(self) -> Array:
        """Positions [from, to) of each chosen episode, int64 [n, 2]."""
        return np.stack([self._ends - self._length, self._ends], axis=1)

    @cached_property
    def interface(self) -> Interface:
        """What the dataset offers a policy, as a benchmark would.

        Raises:
            DatasetError: it has no actions.
        """
        info = self.info
        found = {key: from_info(key, entry) for key, entry in info.features.items()}
        return Interface(
            name=self.name,
            features={k: f for k, f in found.items() if f is not None and f.kind in _OBSERVED},
            action=ActionSpec(int(np.prod(info.feature(ACTION).shape))),
            fps=info.fps,
        )

    @cached_property
    def stats(self) -> Stats:
        """The statistics of the whole dataset, also where only some episodes are read."""
        return read_stats(self.root) or aggregate(read_episode_stats(self.root, self.info))

    @cached_property
    def _columns(self) -> Columns:
        """The tables' columns, and every episode where the table of episodes says.

        Raises:
            DatasetError: another is there.
        """
        columns = Columns(self.info, self._files)
        if self.info.is_v2 or not len(self):  # an episode of v2.x is a file
            return columns
        long = self._length > 0
        for row in (self._first_row[long], (self._first_row + self._length)[long] - 1):
            found = columns["episode_index"].take(row)
            wrong = np.flatnonzero(found != self.chosen[long])
            if len(wrong):
                episode = self.chosen[long][wrong[0]]
                path = data_file(self.root, self.info, *self.episodes[int(episode)].data)
                raise DatasetError(
                    f"{path}: episode {found[wrong[0]]} stands where meta/episodes has {episode}"
                )
        return columns

    def __getitem__(self, position: int) -> dict[str, Any]:
        """Return one frame; numbers of shape (1,) have no axes, ``task`` is a text.

        Raises:
            IndexError: there is no such frame.
            DatasetError: it cannot be read.
        """
        if not -len(self) <= position < len(self):
            raise IndexError(f"frame {position} is not in {self.name} (0 to {len(self) - 1})")
        return {key: value[0] for key, value in self.batch([position % len(self)]).items()}

    def batch(self, positions: Sequence[int] | Array, keys: Sequence[str] | None = None) -> Any:
        """Return frames, stacked: {key: array [B, ...]}, of all features or of ``keys``.

        Features with delta_timestamps are [B, T, ...] and have a mask ``<key>_is_pad`` [B, T]; a
        video of one moment has no T. Pictures are uint8 [B, (T,) H, W, C], depth float32
        millimetres. ``task`` and texts are lists.

        Raises:
            IndexError: there is no such frame.
            DatasetError: a file is missing or damaged.
        """
        moments = self._moments(positions)
        wanted = tuple(self.info.features) if keys is None else keys
        out: dict[str, Any] = {}
        for key in wanted:
            self.info.entry(key)
            rows, chosen = moments.rows, moments.chosen
            if key in self._offsets:
                rows, out[f"{key}_is_pad"] = moments.around(self._offsets[key])
                if key in self.info.video_keys and rows.shape[1] == 1:
                    rows = rows[:, 0]
            out[key] = self._gather(key, rows, chosen)
        out["task"] = self._task_texts(moments.rows)
        return out

    def _moments(self, positions: Sequence[int] | Array) -> Moments:
        at = np.asarray(positions, np.int64)
        if at.ndim != 1:
            raise IndexError(f"positions must be a list of numbers, not of shape {at.shape}")
        wrong = at[(at < 0) | (at >= len(self))]
        if len(wrong):
            raise IndexError(f"frame {wrong[0]} is not in {self.name} (0 to {len(self) - 1})")
        chosen = np.searchsorted(self._ends, at, side="right")
        length = self._length[chosen]
        frame = at - self._ends[chosen] + length
        return Moments(chosen, frame, length, self._first_row[chosen])

    def _gather(self, key: str, rows: Array, chosen: Array) -> Any:
        if key in self.info.video_keys:
            return self._film(key, rows, chosen)
        values = self._columns[key].take(rows)
        if key not in self.info.image_keys:
            return values
        shape = self.info.shape(key)
        assert len(shape) == 3  # as in every info.json that was read
        files = values if rows.ndim == 1 else [file for line in values for file in line]
        where = f"{self.root}, column {key}"
        return decode_pictures(where, files, shape).reshape(*rows.shape, *shape)

    def _film(self, key: str, rows: Array, chosen: Array) -> Array:
        """Return frames of a camera's videos: each where its episode begins plus its own time."""
        spans = self.episodes.videos[key]
        flat = rows.ravel()
        which = self.chosen[np.repeat(chosen, rows.size // len(chosen))]
        seconds = spans.from_s[which] + self._columns["timestamp"].take(flat).astype(np.float64)
        fps = self.info.fps
        requests = [
            FrameRequest(self._video(key, chunk, file), round(second * fps), fps, second)
            for chunk, file, second in zip(
                spans.chunk[which].tolist(), spans.file[which].tolist(), seconds.tolist(),
                strict=True,
            )
        ]  # fmt: skip
        if not self.info.is_depth(key):
            frames = self._frames.read(requests, RGB)
        else:
            scale = DepthScale.of(self.info.entry(key))
            frames = scale.decode(self._frames.read(requests, CODES))
        return frames.reshape(*rows.shape, *frames.shape[1:])

    def _video(self, key: str, chunk: int, file: int) -> Path:
        return video_file(self.root, self.info, key, chunk, file)

    def _task_texts(self, rows: Array) -> list[str]:
        indices = self._columns["task_index"].take(rows)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self.tasks):
            raise DatasetError(
                f"{self.root}: task_index goes to {indices.max()}, and there are {len(self.tasks)} "
                "tasks"
            )
        return [self.tasks[i] for i in indices]


def _placed(source: Source, chosen: Array) -> tuple[list[TableFile], Array]:
    """Return the tables that hold the chosen episodes, and the first row of each of these.

    A table holds its episodes one after another, in order; what follows them is not looked at.
    """
    episodes = source.episodes
    names, table_of = np.unique(
        np.stack([episodes.data_chunk, episodes.data_file], axis=1), axis=0, return_inverse=True
    )
    table_of = table_of.reshape(-1)
    rows = np.zeros(len(names), np.int64)
    np.add.at(rows, table_of, episodes.length)
    order = np.argsort(table_of, kind="stable")
    before = np.cumsum(episodes.length[order]) - episodes.length[order]
    within = np.empty(len(order), np.int64)  # of each episode, its first row in its table
    within[order] = before - (np.cumsum(rows) - rows)[table_of[order]]
    needed = np.unique(table_of[chosen])
    starts = np.zeros(len(names), np.int64)
    starts[needed] = np.cumsum(rows[needed]) - rows[needed]
    files = [
        TableFile(
            data_file(source.root, source.info, int(names[table][0]), int(names[table][1])),
            int(starts[table]),
            int(rows[table]),
        )
        for table in needed
    ]
    return files, starts[table_of[chosen]] + within[chosen]
