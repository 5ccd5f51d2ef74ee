"""The videos of an edited dataset: packets copied; pictures are encoded only where they must be."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from proctor.datasets.edit.edit_plan import (
    MB,
    EditPlan,
    FileNumber,
    FileSegment,
    KeptEpisode,
    file_segments,
    grouped,
)
from proctor.datasets.edit.files import link_or_copy
from proctor.datasets.edit.images import encode, episode_images, recorded_camera_codec
from proctor.datasets.format.episodes import EpisodeMetadata, VideoSpan
from proctor.datasets.format.info import video_file
from proctor.datasets.frames.packets import (
    DifferentStreams,
    NotAtKeyFrame,
    Piece,
    splice,
    stream_kind,
)
from proctor.datasets.writing.file_allocation import file_number
from proctor.features import Array
from proctor.system.platform_info import usable_cores

_PIECES = ".pieces"
"""A folder of the result while it is made."""


@dataclass
class WrittenVideos:
    """The videos of one camera, as they were written."""

    spans: list[VideoSpan] = field(default_factory=list)
    """Where each episode lies."""
    again: list[int] = field(default_factory=list)
    """Episodes of the result that could not be copied and were encoded again."""
    levels: list[Array] = field(default_factory=list)
    """How often each level was seen in each episode [C, 256], where all of them were encoded."""


def write_videos(edit_plan: EditPlan, key: str, into: Path) -> WrittenVideos:
    """Write the videos of camera ``key``; files that stay as they are are taken over.

    Raises:
        DatasetError: a video is missing, damaged or shorter than its episodes.
        OSError: a file cannot be written.
    """
    writing = _Writing(edit_plan, key, into)
    try:
        return writing.encoded() if key in edit_plan.codecs else writing.copied()
    finally:
        shutil.rmtree(into / _PIECES, ignore_errors=True)


class _Writing:
    """The videos of one camera, file by file."""

    def __init__(self, edit_plan: EditPlan, key: str, into: Path) -> None:
        self._edit_plan, self._key, self._into = edit_plan, key, into
        self._name = edit_plan.source_key(key)
        self._n_files = 0
        self._filmed = WrittenVideos()

    def copied(self) -> WrittenVideos:
        """Copy packets."""

        def file_of(row: EpisodeMetadata) -> FileNumber:
            return row.videos[self._name].chunk, row.videos[self._name].file

        parts = file_segments(self._edit_plan, file_of)
        for group in grouped(parts, self._path_of, self._edit_plan.info.video_files_size_in_mb):
            if len(group) == 1 and group[0].whole:
                self._take_over(group[0])
            else:
                self._copy([place for part in group for place in part.places])
        return self._filmed

    def encoded(self) -> WrittenVideos:
        """Encode every episode, several side by side, then put them together as packets."""
        limit = self._edit_plan.info.video_files_size_in_mb * MB
        pieces: list[Path] = []
        filled = 0
        with ThreadPoolExecutor(min(8, usable_cores())) as threads:
            try:
                encoding = threads.map(self._encode, range(len(self._edit_plan.kept)))
                for place, levels in enumerate(encoding):
                    self._filmed.levels.append(levels)
                    size = self._piece(place).stat().st_size
                    if pieces and filled + size >= limit:
                        self._join(pieces)
                        pieces, filled = [], 0
                    pieces.append(self._piece(place))
                    filled += size
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise
        self._join(pieces)
        return self._filmed

    def _encode(self, place: int) -> Array:
        kept, codec = self._edit_plan.kept[place], self._edit_plan.codecs[self._key]
        pictures = episode_images(kept, self._name)
        return encode(pictures, self._piece(place), codec, kept.source.info.fps)

    def _join(self, pieces: Sequence[Path]) -> None:
        self._splice([Piece(path) for path in pieces])
        for path in pieces:
            path.unlink()

    def _take_over(self, part: FileSegment) -> None:
        """Let a whole file be one of the result's."""
        file = file_number(self._edit_plan.info, self._n_files)
        self._n_files += 1
        link_or_copy(self._path_of(part), self._path(file), linked=self._edit_plan.linked)
        for place in part.places:
            old = self._edit_plan.kept[place].row.videos[self._name]
            self._filmed.spans.append(VideoSpan(*file, old.from_s, old.to_s))

    def _copy(self, places: Sequence[int]) -> None:
        """Write a file, or several where the pieces do not fit together."""
        pieces = [self._piece_of(self._edit_plan.kept[place]) for place in places]
        try:
            self._splice(pieces)
        except NotAtKeyFrame:
            self._splice([self._cut(place) for place in places])

    def _cut(self, place: int) -> Piece:
        """Return an episode as a file of its own, encoded again if it cannot be copied."""
        kept, path = self._edit_plan.kept[place], self._piece(place)
        try:
            splice([self._piece_of(kept)], path)
        except NotAtKeyFrame:
            codec = recorded_camera_codec(kept.source.info, self._name)
            encode(episode_images(kept, self._name), path, codec, kept.source.info.fps)
            self._filmed.again.append(place)
        return Piece(path)

    def _splice(self, pieces: Sequence[Piece]) -> None:
        file = file_number(self._edit_plan.info, self._n_files)
        try:
            times = splice(pieces, self._path(file))
        except DifferentStreams:
            for _, alike in groupby(pieces, lambda piece: stream_kind(piece.path)):
                self._splice(list(alike))
            return
        self._n_files += 1
        self._filmed.spans += [VideoSpan(*file, start, end) for start, end in times]

    def _path(self, file: FileNumber) -> Path:
        return video_file(self._into, self._edit_plan.info, self._key, *file)

    def _path_of(self, part: FileSegment) -> Path:
        return video_file(part.source.root, part.source.info, self._name, *part.file)

    def _piece(self, place: int) -> Path:
        return self._into / _PIECES / f"{place}.mp4"

    def _piece_of(self, kept: KeptEpisode) -> Piece:
        """Return the frames of an episode, where they lie in its source."""
        span, info = kept.row.videos[self._name], kept.source.info
        path = video_file(kept.source.root, info, self._name, span.chunk, span.file)
        start = round(span.from_s * info.fps)
        return Piece(path, start, start + kept.row.length, span.from_s)
