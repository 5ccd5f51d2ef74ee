"""The video files of an edited dataset: copied packets, or frames encoded again where needed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from proctor.datasets.edit.edit_plan import (
    EditPlan,
    FileSegment,
    KeptEpisode,
    group_segments,
    video_segments,
)
from proctor.datasets.edit.files import link_or_copy
from proctor.datasets.edit.images import encode, episode_images, recorded_camera_codec
from proctor.datasets.format.episodes import VideoSpan
from proctor.datasets.format.info import video_file
from proctor.datasets.frames.packets import (
    DifferentStreams,
    NotAtKeyFrame,
    Piece,
    splice,
    stream_kind,
)
from proctor.datasets.writing.file_allocation import FileNumber, file_number
from proctor.features import Array
from proctor.system.platform.platform_info import usable_cores

_PIECES = ".pieces"
"""Temporary folder inside the result, with one video per episode."""


@dataclass
class WrittenVideos:
    """The result's videos of one camera."""

    spans: list[VideoSpan] = field(default_factory=list)
    """Where each episode is."""
    again: list[int] = field(default_factory=list)
    """Episodes whose packets could not be copied, so that they were encoded again."""
    levels: list[Array] = field(default_factory=list)
    """Pixel counts [C, 256] of each episode's sampled images; empty if videos were copied."""


def write_videos(edit_plan: EditPlan, key: str, into: Path) -> WrittenVideos:
    """Write the videos of camera ``key``; link or copy the files that do not change.

    Raises:
        DatasetError: a video is missing, damaged or shorter than its episodes.
        OSError: a file cannot be written.
    """
    writer = _VideoWriter(edit_plan, key, into)
    try:
        if key in edit_plan.codecs:
            writer.encode_all()
        else:
            writer.copy_all()
    finally:
        shutil.rmtree(into / _PIECES, ignore_errors=True)
    return writer.written


class _VideoWriter:
    """Writes the videos of one camera, file by file."""

    def __init__(self, edit_plan: EditPlan, key: str, into: Path) -> None:
        self._edit_plan, self._key, self._into = edit_plan, key, into
        self._name = edit_plan.source_key(key)
        self._n_files = 0
        self.written = WrittenVideos()

    def copy_all(self) -> None:
        """Copy the packets of all episodes."""
        segments = video_segments(self._edit_plan, self._key)
        for group in group_segments(segments, self._edit_plan.file_limits.video):
            if len(group) == 1 and group[0].whole:
                self._take_file(group[0])
            elif self._edit_plan.repack:
                self._join_files(group)
            else:
                self._copy([position for segment in group for position in segment.positions])

    def encode_all(self) -> None:
        """Encode every episode, several in parallel, then join the resulting packets."""
        limit = self._edit_plan.file_limits.video
        pieces: list[Path] = []
        filled = 0
        with ThreadPoolExecutor(min(8, usable_cores())) as threads:
            try:
                encoding = threads.map(self._encode, range(len(self._edit_plan.kept)))
                for position, levels in enumerate(encoding):
                    self.written.levels.append(levels)
                    size = self._piece_path(position).stat().st_size
                    if pieces and filled + size >= limit:
                        self._join_pieces(pieces)
                        pieces, filled = [], 0
                    pieces.append(self._piece_path(position))
                    filled += size
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise
        self._join_pieces(pieces)

    def _encode(self, position: int) -> Array:
        kept, codec = self._edit_plan.kept[position], self._edit_plan.codecs[self._key]
        images = episode_images(kept, self._name)
        return encode(images, self._piece_path(position), codec, kept.source.info.fps)

    def _join_pieces(self, pieces: Sequence[Path]) -> None:
        self._splice([Piece(path) for path in pieces])
        for path in pieces:
            path.unlink()

    def _take_file(self, segment: FileSegment) -> None:
        """Make a whole source file a file of the result."""
        file = self._next_file()
        link_or_copy(segment.path, self._path(file), linked=self._edit_plan.linked)
        self._n_files += 1
        self._add_spans(segment, file, 0.0)

    def _join_files(self, segments: Sequence[FileSegment]) -> None:
        """Join whole source files; write several files if they were encoded differently."""
        if len(segments) == 1:
            self._take_file(segments[0])
            return
        file = self._next_file()
        try:
            times = splice([Piece(segment.path) for segment in segments], self._path(file))
        except DifferentStreams:
            for _, alike in groupby(segments, lambda segment: stream_kind(segment.path)):
                self._join_files(list(alike))
            return
        self._n_files += 1
        for segment, (start_s, _) in zip(segments, times, strict=True):
            self._add_spans(segment, file, start_s)

    def _add_spans(self, segment: FileSegment, file: FileNumber, start_s: float) -> None:
        """Add the spans of a source file that begins at ``start_s`` of the result's file."""
        for position in segment.positions:
            old = self._edit_plan.kept[position].row.videos[self._name]
            span = VideoSpan(*file, old.from_s + start_s, old.to_s + start_s)
            self.written.spans.append(span)

    def _copy(self, positions: Sequence[int]) -> None:
        """Copy episodes into a file, or into several if they were encoded differently."""
        pieces = [self._source_piece(self._edit_plan.kept[position]) for position in positions]
        try:
            self._splice(pieces)
        except NotAtKeyFrame:
            self._splice([self._cut(position) for position in positions])

    def _cut(self, position: int) -> Piece:
        """Return an episode as a file of its own, encoded again if it cannot be copied."""
        kept, path = self._edit_plan.kept[position], self._piece_path(position)
        try:
            splice([self._source_piece(kept)], path)
        except NotAtKeyFrame:
            codec = recorded_camera_codec(kept.source.info, self._name)
            encode(episode_images(kept, self._name), path, codec, kept.source.info.fps)
            self.written.again.append(position)
        return Piece(path)

    def _splice(self, pieces: Sequence[Piece]) -> None:
        """Join pieces, one per episode; write several files if they were encoded differently."""
        file = self._next_file()
        try:
            times = splice(pieces, self._path(file))
        except DifferentStreams:
            for _, alike in groupby(pieces, lambda piece: stream_kind(piece.path)):
                self._splice(list(alike))
            return
        self._n_files += 1
        self.written.spans += [VideoSpan(*file, start, end) for start, end in times]

    def _next_file(self) -> FileNumber:
        return file_number(self._edit_plan.info, self._n_files)

    def _path(self, file: FileNumber) -> Path:
        return video_file(self._into, self._edit_plan.info, self._key, *file)

    def _piece_path(self, position: int) -> Path:
        return self._into / _PIECES / f"{position}.mp4"

    def _source_piece(self, kept: KeptEpisode) -> Piece:
        """Return the frames of an episode in its source file."""
        span, info = kept.row.videos[self._name], kept.source.info
        path = video_file(kept.source.root, info, self._name, span.chunk, span.file)
        start = round(span.from_s * info.fps)
        return Piece(path, start, start + kept.row.length, span.from_s)
