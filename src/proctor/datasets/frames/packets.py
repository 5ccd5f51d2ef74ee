"""Join and cut videos by copying packets, without decoding."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from proctor.datasets.frames.decoder import open_video
from proctor.datasets.frames.encoder import discard
from proctor.errors import DatasetError
from proctor.system.files import UNFINISHED, publish

_OFF_S = 1e-3
"""Tolerance of timestamps: above rounding errors, below the duration of a frame."""


class NotAtKeyFrame(DatasetError):
    """Frames cannot be cut by copying packets: they depend on frames outside, or the reverse."""


class DifferentStreams(DatasetError):
    """Videos cannot be joined by copying packets: they were encoded differently."""


@dataclass(frozen=True)
class Piece:
    """Consecutive frames of a video: all, or [start, stop)."""

    path: Path
    start: int = 0
    stop: int | None = None
    begins_s: float | None = None
    """Expected time of the first frame; a difference means that frames before it are missing."""


def concatenate(parts: Sequence[Path], into: Path) -> list[tuple[float, float]]:
    """Join the videos ``parts``; return the start and end of each in the result, in seconds.

    Raises:
        DifferentStreams: they were encoded differently.
        DatasetError: one is missing or damaged.
        OSError: the file cannot be written.
    """
    return splice([Piece(part) for part in parts], into)


def extract(
    source: Path, spans: Sequence[tuple[int, int]], into: Path
) -> list[tuple[float, float]]:
    """Write the frames [start, stop) of ``spans``, in order, as a new video.

    Return the start and end of each span in the new video, in seconds.

    Raises:
        NotAtKeyFrame: a span does not begin at a key frame.
        DatasetError: the video is missing or damaged, or has no such frames.
        OSError: the file cannot be written.
    """
    return splice([Piece(source, start, stop) for start, stop in spans], into)


def splice(pieces: Sequence[Piece], into: Path) -> list[tuple[float, float]]:
    """Join pieces of videos; raises as ``concatenate`` and ``extract``.

    Return the start and end of each piece in the new video, in seconds. The file gets its final
    name when it is complete and on the disk.
    """
    if not pieces:
        raise ValueError("a video of no pieces")
    for piece in pieces:
        if piece.stop is not None and piece.stop <= piece.start:
            raise DatasetError(
                f"{piece.path}: there are no frames {piece.start} to {piece.stop}",
                code="video.empty",
            )
    into.parent.mkdir(parents=True, exist_ok=True)
    unfinished = into.with_name(into.name + UNFINISHED)
    joined = _Joined(unfinished)
    try:
        ends = [Fraction(0)]
        for start, stop in _of_one_file(pieces):
            ends += joined.append(pieces[start:stop])
        joined.close()
    except BaseException:
        joined.discard()
        raise
    publish(unfinished, into)
    times = [float(end) for end in ends]
    return list(itertools.pairwise(times))


def _of_one_file(pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    """Yield ranges of pieces that can be copied in one pass over a file."""
    start = 0
    for index in range(1, len(pieces) + 1):
        if index == len(pieces) or not _goes_on(pieces[index - 1], pieces[index]):
            yield start, index
            start = index


def _goes_on(piece: Piece, then: Piece) -> bool:
    return piece.path == then.path and piece.stop is not None and piece.stop <= then.start


class _Joined:
    """The joined video that is being written."""

    def __init__(self, path: Path) -> None:
        import av

        self._container = av.open(
            f"file:{path}",
            "w",
            format="mp4",
            options={"movflags": "+faststart", "fflags": "+bitexact"},
        )
        self._path = path
        self._first: Path | None = None
        self._kind: tuple[Any, ...] = ()
        self._stream: Any = None
        self._end = Fraction(0)

    def close(self) -> None:
        self._container.close()

    def discard(self) -> None:
        discard(self._container, self._path)

    def append(self, pieces: Sequence[Piece]) -> list[Fraction]:
        """Copy pieces of one file in one pass; return the end of each piece."""
        path, ends = pieces[0].path, []
        with open_video(path) as (container, stream):
            self._join(path, stream)
            groups = _groups(container, stream)
            at, group = 0, next(groups, [])
            for piece in pieces:
                while group and at + len(group) <= piece.start:
                    at, group = at + len(group), next(groups, [])
                _check_start(piece, at, group)
                begin, length = min(p.pts for p in group), 0
                _check_time(piece, float(begin * stream.time_base))
                shift = round(self._end / stream.time_base) - begin
                while group and (piece.stop is None or at < piece.stop):
                    kept = _first_frames(piece, at, group)
                    length = max(length, *(p.pts + p.duration - begin for p in kept))
                    for packet in kept:
                        self._copy(packet, shift)
                    if len(kept) < len(group):
                        break
                    at, group = at + len(group), next(groups, [])
                else:
                    _check_stop(piece, at, group)
                self._end += length * stream.time_base
                ends.append(self._end)
        return ends

    def _join(self, path: Path, stream: Any) -> None:
        kind = _kind(stream)
        if self._stream is None:
            self._stream = self._container.add_stream_from_template(stream, opaque=True)
            self._stream.time_base = stream.time_base
            self._first, self._kind = path, kind
        elif kind != self._kind:
            raise DifferentStreams(
                f"{path} and {self._first} were encoded differently and can only be joined by "
                "encoding them again",
                code="video.different-streams",
            )

    def _copy(self, packet: Any, shift: int) -> None:
        packet.pts += shift
        packet.dts += shift
        packet.stream = self._stream
        try:
            self._container.mux_one(packet)
        except OSError as error:  # an error of the output file
            raise OSError(error.errno, error.strerror, str(self._path)) from None


def stream_kind(path: Path) -> tuple[Any, ...]:
    """Return the properties that must be equal to join videos by copying packets."""
    with open_video(path) as (_, stream):
        return _kind(stream)


def _kind(stream: Any) -> tuple[Any, ...]:
    context = stream.codec_context
    size = (context.width, context.height)
    return (stream.codec.canonical_name, *size, context.pix_fmt, context.extradata)


def _groups(container: Any, stream: Any) -> Iterator[list[Any]]:
    """Yield groups of packets that each start at a key frame, in decoding order."""
    group: list[Any] = []
    for packet in container.demux(stream):
        if packet.pts is None or packet.dts is None:  # the end
            continue
        if packet.is_keyframe and group:
            yield group
            group = []
        group.append(packet)
    if group:
        yield group


def _leads(group: list[Any]) -> bool:
    """Tell whether frames are shown before their key frame, so that they need the group before."""
    return any(packet.pts < group[0].pts for packet in group)


def _check_start(piece: Piece, at: int, group: list[Any]) -> None:
    if not group:
        raise DatasetError(
            f"{piece.path} has {at} frames, so frame {piece.start} is missing",
            code="video.missing-frame",
        )
    if at != piece.start or _leads(group) or not group[0].is_keyframe:
        raise NotAtKeyFrame(
            f"frame {piece.start} of {piece.path} is not a key frame: a piece that begins "
            "there must be encoded again",
            code="video.not-at-key-frame",
        )


def _check_time(piece: Piece, begins_s: float) -> None:
    if piece.begins_s is not None and abs(begins_s - piece.begins_s) > _OFF_S:
        raise NotAtKeyFrame(
            f"frame {piece.start} of {piece.path} is shown at {begins_s:g} s and not at "
            f"{piece.begins_s:g} s: frames are missing, so it must be encoded again",
            code="video.not-at-key-frame",
        )


def _first_frames(piece: Piece, at: int, group: list[Any]) -> list[Any]:
    """Return the packets of the group's frames that lie before the piece's end."""
    if piece.stop is None or at + len(group) <= piece.stop:
        return group
    kept = group[: piece.stop - at]
    if max(p.pts for p in kept) > min(p.pts for p in group[len(kept) :]):
        raise _needed(piece)
    return kept


def _check_stop(piece: Piece, at: int, group: list[Any]) -> None:
    if piece.stop is not None and at < piece.stop:
        raise DatasetError(
            f"{piece.path} has {at} frames, so frames up to {piece.stop} cannot be copied",
            code="video.missing-frame",
        )
    if group and _leads(group):
        raise _needed(piece)


def _needed(piece: Piece) -> NotAtKeyFrame:
    return NotAtKeyFrame(
        f"frame {piece.stop} of {piece.path} is needed by frames before it: a piece that "
        "ends there must be encoded again",
        code="video.not-at-key-frame",
    )
