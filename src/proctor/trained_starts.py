"""The starts that a policy was trained on, in one compact file of its checkpoint.

    {format, unknown, groups: [{source, suite, task_id, names, tolerance, condensed,
                                count, lows, numbers, planned}]}

as MessagePack. ``numbers`` are the starts of a group as integers, in units of the power of ten that
starts are rounded to: a zlib stream of int64 less ``lows``, one column after the other, the bytes
of a column by significance. A group is condensed to ``_CONDENSED`` sums if its numbers would take
more than ``_MOST_BYTES`` for each start. Starts without numbers have their digests instead.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from proctor.features import Array
from proctor.starts import (
    DemonstrationStart,
    StartSource,
    condensed_start,
    decimal_scale,
    start_of,
)
from proctor.system.files import read_regular_file
from proctor.types import MAX_START_VALUES, Start

if TYPE_CHECKING:
    import numpy as np
else:  # `proctor eval --help` comes here
    from proctor_worker.lazy_numpy import np

TRAINED_STARTS_FILE = "trained_starts.msgpack"
_FORMAT = 1
_MOST_BYTES = 90
"""Bytes of a start's numbers above which a group is condensed."""
_CONDENSED = 20
_LEVEL = 6
_MOST_RAW_BYTES = 2**29
_MOST_REASONS = 8
_DIGEST_BYTES = 16
_NOT_MEASURED = (
    "no measured start (datasets recorded on robots, by LeRobot or by an older Proctor have none)"
)
_EXACT = 2**53
"""Numbers above this are no exact integers."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**7)]
_Name = Annotated[str, msgspec.Meta(max_length=1000)]


class StartGroup(NamedTuple):
    """What starts have in common that can be compared: their task, and the names of numbers."""

    source: StartSource
    suite: str
    task_id: int
    names: tuple[str, ...]
    tolerance: float
    """That of the benchmark."""

    @property
    def task(self) -> tuple[str, int]:
        """Suite and id of the clean task."""
        return self.suite, self.task_id


@dataclass(frozen=True)
class GroupStarts:
    """The distinct starts of a group."""

    starts: dict[str, tuple[Start, str]]
    """The start and its planned name, by digest."""
    condensed: bool = False
    """Whether the starts are sums of their numbers."""

    def as_condensed(self) -> GroupStarts:
        """Return the group with sums of numbers."""
        if self.condensed:
            return self
        sums = ((condensed_start(one, _CONDENSED), name) for one, name in self.starts.values())
        return GroupStarts({one.digest: (one, name) for one, name in sums}, condensed=True)

    def comparable(self, start: Start) -> Start:
        """Return an episode's start as this group keeps starts."""
        return condensed_start(start, _CONDENSED) if self.condensed else start


@dataclass(frozen=True)
class TrainedStarts:
    """The distinct starts of the episodes that a policy was trained on."""

    groups: dict[StartGroup, GroupStarts] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    """Why starts may be missing; empty if all are known."""

    def __len__(self) -> int:
        return sum(len(group.starts) for group in self.groups.values())

    @classmethod
    def of(
        cls, demonstrations: Iterable[DemonstrationStart], unknown: Iterable[str] = ()
    ) -> TrainedStarts:
        """Return the set of these starts."""
        groups: dict[StartGroup, GroupStarts] = {}
        reasons = [*unknown]
        for one in demonstrations:
            start = one.start
            if any(abs(value) * decimal_scale(start.tolerance) >= _EXACT for value in start.values):
                reasons.append("a demonstration's start has numbers that are too large to be kept")
                continue
            key = StartGroup(one.source, one.suite, one.task_id, start.names, start.tolerance)
            group = groups.setdefault(key, GroupStarts({}))
            group.starts[start.digest] = (start, one.planned)
        return cls(groups, _distinct(reasons))

    @classmethod
    def of_episodes(cls, dataset: str, texts: Sequence[str | None]) -> TrainedStarts:
        """Return the starts of a dataset's episodes, as its table of episodes has them."""
        found: list[DemonstrationStart] = []
        reasons: list[str] = []
        damaged = 0
        for text in texts:
            try:
                found += [] if text is None else [DemonstrationStart.from_json(text)]
            except ValueError:
                damaged += 1
        missing, name = sum(text is None for text in texts), dataset.rstrip("/").split("/")[-1]
        for count, what in ((missing, _NOT_MEASURED), (damaged, "a damaged start")):
            if count:
                have = "has" if count == 1 else "have"
                reasons.append(f"{count} of {len(texts)} demonstrations of {name} {have} {what}")
        return cls.of(found, reasons)

    def merged(self, other: TrainedStarts) -> TrainedStarts:
        """Return the starts of both."""
        groups = dict(self.groups)
        for key, added in other.groups.items():
            known = groups.get(key, GroupStarts({}, added.condensed))
            if known.condensed != added.condensed:
                known, added = known.as_condensed(), added.as_condensed()
            groups[key] = GroupStarts({**known.starts, **added.starts}, known.condensed)
        return TrainedStarts(groups, _distinct((*self.unknown, *other.unknown)))

    def for_benchmark(self, source: StartSource) -> TrainedStarts:
        """Return the starts of one benchmark; ``unknown`` says if some are not comparable."""
        same_name = {
            key: group
            for key, group in self.groups.items()
            if key.source.benchmark == source.benchmark
        }
        others = {key.source for key in self.groups} - {source}
        reasons = [*self.unknown]
        if not same_name and not reasons:
            trained_in = ", ".join(sorted(map(str, others))) or "nothing that is known"
            reasons.append(f"the policy was trained on {trained_in}, not on {source}")
        reasons += [
            f"some demonstrations are of {other}, and this evaluation is of {source}"
            for other in sorted(others)
            if other.benchmark == source.benchmark
        ]
        groups: dict[StartGroup, GroupStarts] = {}
        for key, group in same_name.items():
            one = TrainedStarts({key._replace(source=source): group})
            groups = TrainedStarts(groups).merged(one).groups
        return TrainedStarts(groups, _distinct(reasons))

    def of_task(self, task: tuple[str, int]) -> Iterator[tuple[StartGroup, GroupStarts]]:
        """Yield the groups of a clean task."""
        return ((key, group) for key, group in self.groups.items() if key.task == task)

    @property
    def digest(self) -> str:
        """A hash of the content."""
        return hashlib.sha256(self.encode()).hexdigest()[:16]

    def encode(self) -> bytes:
        """Return the content of the file; equal sets make equal bytes."""
        groups = [_encoded(key, self.groups[key]) for key in sorted(self.groups)]
        return msgspec.msgpack.encode(_File(_FORMAT, list(self.unknown), groups))

    @classmethod
    def decode(cls, content: bytes) -> TrainedStarts:
        """Return what ``encode`` wrote.

        Raises:
            ValueError: the content is damaged, or of a newer Proctor.
        """
        try:
            found = msgspec.msgpack.decode(content, type=_Format).format
            if found > _FORMAT:
                raise ValueError(f"format {found} of a newer Proctor")
            file = msgspec.msgpack.decode(content, type=_File)
            return cls(dict(map(_decoded, file.groups)), _distinct(file.unknown))
        except (msgspec.MsgspecError, zlib.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error)) from None


def read_trained_starts(folder: Path) -> TrainedStarts | None:
    """Return the starts that trained a checkpoint; None if it does not say.

    A damaged file, or that of a newer Proctor, is an unknown set of starts.
    """
    path = folder / TRAINED_STARTS_FILE
    try:
        return TrainedStarts.decode(read_regular_file(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        return TrainedStarts(unknown=(f"{path.name} cannot be read: {error.strerror}",))
    except ValueError as error:
        return TrainedStarts(unknown=(f"{path.name} is damaged: {str(error)[:100]}",))


def _distinct(reasons: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reason[:300] for reason in reasons))[:_MOST_REASONS]


class _Format(msgspec.Struct):
    format: int


class _Group(msgspec.Struct):
    source: StartSource
    suite: _Name
    task_id: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    names: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=MAX_START_VALUES)]
    tolerance: Annotated[float, msgspec.Meta(gt=0, le=1e9)]
    condensed: bool
    count: _Count
    lows: Annotated[list[int], msgspec.Meta(max_length=MAX_START_VALUES)]
    numbers: bytes
    planned: bytes


class _File(msgspec.Struct):
    format: int
    unknown: list[str]
    groups: list[_Group]


def _encoded(key: StartGroup, group: GroupStarts) -> _Group:
    ordered = sorted(group.starts.values(), key=lambda entry: (entry[0].values, entry[0].digest))
    lows, numbers = _packed(key, [start for start, _ in ordered])
    is_large = len(numbers) > _MOST_BYTES * len(ordered) + 4096
    if is_large and len(key.names) > _CONDENSED and not group.condensed:
        return _encoded(key, group.as_condensed())
    return _Group(
        source=key.source,
        suite=key.suite,
        task_id=key.task_id,
        names=key.names,
        tolerance=key.tolerance,
        condensed=group.condensed,
        count=len(ordered),
        lows=lows,
        numbers=numbers,
        planned=zlib.compress("\0".join(name for _, name in ordered).encode(), _LEVEL),
    )


def _packed(key: StartGroup, starts: list[Start]) -> tuple[list[int], bytes]:
    if not key.names:
        return [], zlib.compress(b"".join(bytes.fromhex(one.digest) for one in starts), _LEVEL)
    scale = decimal_scale(starts[0].tolerance)
    rows = np.rint(np.array([one.values for one in starts]) * scale).astype(np.int64)
    lows = rows.min(axis=0)
    columns = np.ascontiguousarray((rows - lows).T.astype("<u8"))  # [numbers, starts]
    planes = columns.view(np.uint8).reshape(*columns.shape, 8).transpose(0, 2, 1)
    return lows.tolist(), zlib.compress(planes.tobytes(), _LEVEL)


def _decoded(found: _Group) -> tuple[StartGroup, GroupStarts]:
    key = StartGroup(found.source, found.suite, found.task_id, found.names, found.tolerance)
    width = len(found.names)
    if found.condensed:
        if width <= _CONDENSED:
            raise ValueError("a group of few numbers is condensed")
        width = _CONDENSED
    if len(found.lows) != width:
        raise ValueError("a group has other numbers than names")
    planned = _inflated(found.planned, None).decode().split("\0")
    if len(planned) != max(1, found.count):
        raise ValueError("a group has other names than starts")
    starts = _unpacked(found, width)
    named = zip(starts, planned, strict=False)
    return key, GroupStarts({one.digest: (one, name) for one, name in named}, found.condensed)


def _unpacked(found: _Group, width: int) -> list[Start]:
    if not width:
        raw = _inflated(found.numbers, found.count * _DIGEST_BYTES)
        size = _DIGEST_BYTES
        digests = (raw[at : at + size].hex() for at in range(0, len(raw), size))
        return [Start((), (), found.tolerance, digest) for digest in digests]
    raw = _inflated(found.numbers, found.count * width * 8)
    planes = np.frombuffer(raw, np.uint8).reshape(width, 8, found.count)
    columns = np.ascontiguousarray(planes.transpose(0, 2, 1)).view("<u8")[..., 0]
    rows = columns.T.astype(np.int64) + np.array(found.lows, np.int64)
    names, tolerance = found.names, found.tolerance
    if found.condensed:
        like = condensed_start(Start(names, (0.0,) * len(names), tolerance, ""), _CONDENSED)
        names, tolerance = like.names, like.tolerance
    values: Array = rows / decimal_scale(tolerance) + 0.0
    if not np.isfinite(values).all():
        raise ValueError("a start has numbers that are not finite")
    return [start_of(names, row, tolerance) for row in values]


def _inflated(content: bytes, size: int | None) -> bytes:
    """Decompress at most ``size`` bytes; None: as much as planned names may take.

    Raises:
        ValueError: there are more or fewer bytes.
    """
    most = _MOST_RAW_BYTES if size is None else size
    if most > _MOST_RAW_BYTES:
        raise ValueError("a group is too large")
    opened: Any = zlib.decompressobj()
    raw: bytes = opened.decompress(content, most + 1)
    if len(raw) > most or not opened.eof or (size is not None and len(raw) != size):
        raise ValueError("a group's numbers have another size")
    return raw
