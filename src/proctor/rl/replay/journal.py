"""``Journal``: every transition that a learner acknowledged, in append-only files.

A segment is a file of framed records: length, CRC-32, content. The first record holds the schema
and the actors' positions before the segment. ``sync`` writes all appended records and waits for the
disk. A kill leaves at most an incomplete end of the last segment, which ``Journal`` removes when it
opens the folder: it was never acknowledged.

Consecutive transitions share images. A record stores the images of its observation only if they are
not those of the same actor's record before it in the segment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import struct
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from proctor.errors import ProtocolError, RunFolderError, WriteFailed
from proctor.rl.link.links import ActorPosition, ReceivedTransition
from proctor.rl.replay.records import RecordCodec
from proctor.rl.replay.schema import TransitionSchema
from proctor.system.files import close_quietly, read_regular_file, sync, sync_folder
from proctor.system.limits import decode_json

_HEAD = struct.Struct("<II")  # length, CRC-32


def frame(content: bytes) -> bytes:
    """Return ``content`` with its length and checksum in front."""
    return _HEAD.pack(len(content), zlib.crc32(content)) + content


def complete_frames(data: bytes) -> tuple[list[tuple[int, int]], bool]:
    """Return where each valid frame's content lies, up to the first frame that is not valid.

    The flag tells whether the rest can be the end of an interrupted write: no valid frame follows
    the first one that is not valid.
    """
    found: list[tuple[int, int]] = []
    at = 0
    while (span := _span(data, at)) is not None and _is_valid(data, at, span):
        found.append(span)
        at = span[1]
    after = None if span is None else _span(data, span[1])
    is_torn = span is None or after is None or not _is_valid(data, span[1], after)
    return found, is_torn


def _span(data: bytes, at: int) -> tuple[int, int] | None:
    """Return where the content of the frame at ``at`` lies; None if the data ends before."""
    start = at + _HEAD.size
    if start > len(data):
        return None
    length, _ = _HEAD.unpack_from(data, at)
    return (start, start + length) if start + length <= len(data) else None


def _is_valid(data: bytes, at: int, span: tuple[int, int]) -> bool:
    _, checksum = _HEAD.unpack_from(data, at)
    start, stop = span
    return start < stop and zlib.crc32(data[start:stop]) == checksum


SEGMENT_BYTES = 64 * 2**20
"""A segment that is larger is closed, and the next record begins another one."""
_MAX_FILE_BYTES = 2**30
"""A segment is closed at ``SEGMENT_BYTES``, but its last record may be large."""
_MAX_HEADER_BYTES = 16 * 2**20
_SUFFIX = ".journal"
_NAME = re.compile(rf"([0-9]{{12}}|[1-9][0-9]{{12,14}}){re.escape(_SUFFIX)}")


@dataclass(frozen=True)
class JournalFormat:
    """What a journal stores of a transition; a buffer of it has the same settings."""

    keys: Sequence[str] | None = None
    image_dtype: str = "uint8"


@dataclass
class _OpenSegment:
    """The segment that grows."""

    path: Path
    size: int
    codec: RecordCodec
    is_new: bool = False
    fd: int | None = None
    """Open from the first write on: a service without free descriptors goes on storing."""

    def opened(self) -> int:
        """Return the file's descriptor; it is closed with this object."""
        if self.fd is None:
            self.fd = os.open(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
            weakref.finalize(self, close_quietly, self.fd)
        return self.fd


class Journal:
    """The transitions of one learner, numbered from 0, in a folder of its own."""

    def __init__(
        self, folder: Path, what: JournalFormat | None = None, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Open the journal in ``folder``, or begin one."""
        self.folder, self._format = folder, what or JournalFormat()
        self._segment_bytes = segment_bytes
        self.schema: TransitionSchema | None = None
        self.positions: dict[str, ActorPosition] = {}
        """The position of each actor after all records."""
        self._firsts: list[int] = []
        """The first record of each segment, in order."""
        self._open: _OpenSegment | None = None
        self._waiting: list[bytes] = []
        self._length = 0
        with _disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._load()

    def __len__(self) -> int:
        """Return the number of records, dropped ones included."""
        return self._length

    @property
    def first(self) -> int:
        """The oldest record that is still on disk."""
        return self._firsts[0] if self._firsts else self._length

    def append(self, received: ReceivedTransition) -> None:
        """Add a transition; it is on disk after the next ``sync``."""
        schema = self.schema
        if schema is None:
            what = self._format
            schema = TransitionSchema.of(received.transition, what.keys, what.image_dtype)
        packed = schema.pack(received.transition)  # refuses before anything changes
        self.schema = schema
        segment = self._open
        if segment is None or segment.size > self._segment_bytes:
            self.sync()
            segment = self._begin_segment(schema)
        content = segment.codec.encode(received.actor, received.number, packed)
        self._waiting.append(frame(content))
        segment.size += len(self._waiting[-1])
        self._count(received)

    def sync(self) -> None:
        """Write the appended records, and wait until they are on disk."""
        segment = self._open
        if segment is None or not self._waiting:
            return
        with _disk_errors(segment.path):
            fd = segment.opened()
            _write_all(fd, b"".join(self._waiting))
            sync(fd)
            if segment.is_new:
                sync_folder(self.folder)
        segment.is_new = False
        self._waiting.clear()

    def read(self, first: int, last: int) -> Iterator[ReceivedTransition]:
        """Yield the records ``first`` to ``last`` (exclusive) of those on disk."""
        if first < last and not self.first <= first <= last <= self._length:
            raise RunFolderError(
                f"{self.folder} has the transitions {self.first} to {self._length - 1}, not "
                f"{first} to {last - 1}",
                code="rl.journal-incomplete",
            )
        at = max(0, bisect_right(self._firsts, first) - 1)
        for start in self._firsts[at:]:
            if start >= last:
                return
            index = start
            for received in self._read_segment(start):
                if first <= index < last:
                    yield received
                index += 1
            self._check_complete(start, index)

    def drop_before(self, index: int) -> None:
        """Delete the segments that only hold records before ``index``."""
        while len(self._firsts) > 1 and self._firsts[1] <= index:
            with _disk_errors(self.folder):
                self._path(self._firsts[0]).unlink()
            del self._firsts[0]

    def truncate(self, length: int) -> None:
        """Remove all records after the first ``length``."""
        self.sync()
        if length >= self._length:
            return
        if length < self.first:
            raise RunFolderError(
                f"{self.folder} begins with transition {self.first}, so it cannot end before "
                f"{length}",
                code="rl.journal-incomplete",
            )
        with _disk_errors(self.folder):
            while len(self._firsts) > 1 and self._firsts[-1] >= length:
                self._path(self._firsts.pop()).unlink()
            self._cut(self._firsts[-1], length)
            sync_folder(self.folder)
            self._load()

    def _cut(self, start: int, length: int) -> None:
        """End the segment of ``start`` after record ``length - 1``."""
        path = self._path(start)
        frames, _ = complete_frames(self._content(path))
        ends = [stop for _, stop in frames]
        _truncate_file(path, ends[length - start])

    def _load(self) -> None:
        """Read the state of the folder, and remove an incomplete end."""
        self._firsts = sorted(map(self._first_of, self.folder.glob(f"*{_SUFFIX}")))
        self._open, self._length, self.positions = None, 0, {}
        if not self._firsts:
            return
        start = self._firsts[-1]
        path = self._path(start)
        content = self._content(path)
        frames, is_torn = complete_frames(content)
        end = frames[-1][1] if frames else 0
        if end < len(content) and not is_torn:
            raise self._damaged(path)
        if not frames:
            path.unlink()  # killed while the segment began
            self._load()
            return
        if end < len(content):
            _truncate_file(path, end)
        self._resume_segment(path, content, frames, end)

    def _resume_segment(
        self, path: Path, content: bytes, frames: list[tuple[int, int]], end: int
    ) -> None:
        self.schema, self.positions = self._header(path, content[slice(*frames[0])])
        codec = RecordCodec(self.schema)
        self._open, self._length = _OpenSegment(path, end, codec), self._firsts[-1]
        for span in frames[1:]:
            self._count(self._decoded(codec, path, content[slice(*span)]))

    def _begin_segment(self, schema: TransitionSchema) -> _OpenSegment:
        positions = {name: asdict(position) for name, position in self.positions.items()}
        head = {"schema": schema.to_json(), "positions": positions}
        header = frame(json.dumps(head).encode())
        path = self._path(self._length)
        self._open = _OpenSegment(path, len(header), RecordCodec(schema), is_new=True)
        self._waiting.append(header)
        self._firsts.append(self._length)
        return self._open

    def _read_segment(self, start: int) -> Iterator[ReceivedTransition]:
        path = self._path(start)
        content = self._content(path)
        frames, _ = complete_frames(content)
        if not frames:
            raise self._damaged(path)
        codec = RecordCodec(self._header(path, content[slice(*frames[0])])[0])
        for span in frames[1:]:
            yield self._decoded(codec, path, content[slice(*span)])

    def _decoded(self, codec: RecordCodec, path: Path, content: bytes) -> ReceivedTransition:
        try:
            return codec.decode(content)
        except ValueError as error:
            raise self._damaged(path) from error

    def _content(self, path: Path) -> bytes:
        with _disk_errors(path):
            try:
                return read_regular_file(path, _MAX_FILE_BYTES)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EFBIG, errno.EISDIR):
                    raise self._damaged(path) from error
                raise

    @staticmethod
    def _first_of(path: Path) -> int:
        """Return the first record of a segment."""
        if _NAME.fullmatch(path.name) is None:
            raise RunFolderError(
                f"{path} is not a file of this journal; move it elsewhere", code="rl.journal-stray"
            )
        return int(path.stem)

    def _header(
        self, path: Path, content: bytes
    ) -> tuple[TransitionSchema, dict[str, ActorPosition]]:
        try:
            head = decode_json(content, _MAX_HEADER_BYTES)
            positions = {name: ActorPosition(**given) for name, given in head["positions"].items()}
            if not all(type(n) is int for one in positions.values() for n in vars(one).values()):
                raise TypeError("a position is not an integer")
            return TransitionSchema.from_json(head["schema"]), positions
        except (ProtocolError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(path) from error

    def _check_complete(self, start: int, end: int) -> None:
        """Refuse a segment that lost records at its end."""
        later = [first for first in self._firsts if first > start]
        if end < (later[0] if later else self._length):
            raise self._damaged(self._path(start))

    def _count(self, received: ReceivedTransition) -> None:
        self._length += 1
        if received.number is not None:
            before = self.positions.get(received.actor, ActorPosition())
            self.positions[received.actor] = before.after(received.number, received.transition)

    def _path(self, first: int) -> Path:
        return self.folder / f"{first:012d}{_SUFFIX}"

    @staticmethod
    def _damaged(path: Path) -> RunFolderError:
        return RunFolderError(
            f"{path}: stored transitions are damaged; restore the file from a copy, or start a "
            "new run",
            code="rl.journal-damaged",
        )


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Raise a ``WriteFailed`` for an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise WriteFailed(path, error) from error


def _write_all(fd: int, content: bytes) -> None:
    """Write ``content`` at the end of a file, all of it or nothing."""
    start = os.fstat(fd).st_size
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        os.ftruncate(fd, start)
        raise


def _truncate_file(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
        sync(file.fileno())
