"""Check that videos exist, have the right size, fps and length, and can be decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from proctor.datasets.checks.decoding import MeanColours, decode_all
from proctor.datasets.checks.findings import (
    DatasetFinding,
    FindingLevel,
    RepairCommands,
    episodes_text,
)
from proctor.datasets.checks.table import EpisodeTable
from proctor.datasets.format.episodes import VideoSpans
from proctor.datasets.format.info import Info, video_file
from proctor.datasets.frames.video import VideoFacts, probe
from proctor.errors import DatasetError

_LOOKED_AT = 100
"""Frames per file whose colours are averaged."""


@dataclass(frozen=True)
class VideoCheck:
    """Checks the videos of a dataset, file by file."""

    root: Path
    info: Info
    table: EpisodeTable
    mends: RepairCommands

    def files(self) -> dict[tuple[str, Path], list[int]]:
        """Return the episode rows of each camera and file."""
        found: dict[tuple[str, Path], list[int]] = {}
        for key, spans in self.table.spans.items():
            for row, (chunk, file) in enumerate(zip(spans.chunk, spans.file, strict=True)):
                path = video_file(self.root, self.info, key, int(chunk), int(file))
                found.setdefault((key, path), []).append(row)
        return found

    def spans(self, key: str, path: Path, rows: list[int]) -> Iterator[DatasetFinding]:
        """Check the spans of a file's episodes, without reading the file."""
        spans, frame_s = self.table.spans[key], 1 / self.info.fps
        taken = spans.to_s[rows] - spans.from_s[rows]
        off = np.abs(taken - self.table.length[rows] * frame_s) > 0.5 * frame_s
        if off.any():
            wrong = [rows[i] for i in np.flatnonzero(off)]
            first = wrong[0]
            what = (
                f"from {spans.from_s[first]:.4f} to {spans.to_s[first]:.4f} s is not the time of "
                f"{int(self.table.length[first])} frames at {self.info.fps} fps"
            )
            yield self._finding("video.span", what, path, wrong)
        order = sorted(rows, key=lambda row: float(spans.from_s[row]))
        over, apart = [], []
        end = 0.0
        for row in order:
            gap = float(spans.from_s[row]) - end
            if gap < -0.5 * frame_s:
                over.append(row)
            elif gap > 0.5 * frame_s:
                apart.append(row)
            end = max(end, float(spans.to_s[row]))
        if over:
            what = "it begins before the episode that precedes it in the file has ended"
            yield self._finding("video.overlap", what, path, over)
        if apart:
            what = "there are frames before it in the file that belong to no episode"
            yield self._finding("video.gap", what, path, apart, FindingLevel.WARNING)

    def facts(
        self, key: str, path: Path, rows: list[int]
    ) -> tuple[VideoFacts | None, list[DatasetFinding]]:
        """Check a file's header; the facts are None if it cannot be opened."""
        if not path.is_file():
            return None, [self._lost(key, "video.missing", "no such file", path, rows)]
        try:
            facts = probe(path)
        except DatasetError as error:
            what = str(error).replace(f"{self.root}/", "")
            return None, [self._lost(key, "video.unreadable", what, path, rows)]
        found = []
        height, width, _ = self.info.shape(key)
        if (facts.height, facts.width) != (height, width):
            what = f"images are {facts.width}x{facts.height}, info.json says {width}x{height}"
            found.append(self._finding("video.size", what, path, []))
        if facts.fps is not None and abs(facts.fps - self.info.fps) > 0.01 * self.info.fps:
            what = f"{facts.fps:g} fps, info.json says {self.info.fps}"
            found.append(self._finding("video.fps", what, path, []))
        return facts, found

    def length(
        self, key: str, path: Path, rows: list[int], frames: int
    ) -> Iterator[DatasetFinding]:
        """Check that a file of ``frames`` frames holds its episodes, and no frames after them."""
        last = {row: self._frames(self.table.spans[key], row)[1] for row in rows}
        if short := [row for row in rows if last[row] > frames]:
            what = f"{frames} frames, {last[short[0]]} are needed"
            yield self._finding("video.short", what, path, short)
        elif frames > max(last.values()):
            what = f"{frames - max(last.values())} frames at its end belong to no episode"
            yield self._finding("video.long", what, path, [], FindingLevel.WARNING)

    def decoded(
        self, key: str, path: Path, rows: list[int], colours: MeanColours
    ) -> Iterator[DatasetFinding]:
        """Decode a file, and yield the episodes whose frames are missing or broken."""
        spans = {row: self._frames(self.table.spans[key], row) for row in rows}
        shown = np.concatenate([np.arange(first, end) for first, end in spans.values()])
        looked_at = set(shown[:: max(1, len(shown) // _LOOKED_AT)].tolist())
        seen = decode_all(path, self.info.fps, colours, looked_at)
        yield from self.length(key, path, rows, seen.frames)
        bad = np.array(sorted(seen.broken), np.int64)
        colours.decoded += int(((shown < seen.frames) & ~np.isin(shown, bad)).sum())
        hurt = {
            row: inside[0] - first
            for row, (first, end) in spans.items()
            if len(inside := bad[(bad >= first) & (bad < end)])
        }
        if hurt:
            said = f" ({seen.reason})" if seen.reason else ""
            what = f"frame {int(next(iter(hurt.values())))} cannot be decoded{said}"
            yield self._finding("video.undecodable", what, path, list(hurt))

    def _frames(self, spans: VideoSpans, row: int) -> tuple[int, int]:
        """Return the frames [first, end) of an episode in its file."""
        first = round(float(spans.from_s[row]) * self.info.fps)
        return first, first + int(self.table.length[row])

    def _lost(self, key: str, kind: str, what: str, path: Path, rows: list[int]) -> DatasetFinding:
        """Return the finding for an unusable file; its repair removes the camera."""
        finding = self._finding(kind, what, path, rows)
        if len(rows) < len(self.table):
            return finding
        return replace(finding, mend=self.mends.without_feature(key), leave_out=())

    def _finding(
        self,
        kind: str,
        what: str,
        path: Path,
        rows: list[int],
        level: FindingLevel = FindingLevel.ERROR,
    ) -> DatasetFinding:
        episodes = self.table.numbers(rows)
        where = path.relative_to(self.root).as_posix()
        if episodes:
            where += f", {episodes_text(episodes)}"
        leave_out = tuple(episodes) if level is FindingLevel.ERROR else ()
        return DatasetFinding(level, kind, what, where, leave_out=leave_out)
