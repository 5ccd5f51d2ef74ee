"""The journal: what was synced survives every kill, bit by bit."""

from __future__ import annotations

import gc
import json
import os
import resource
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from proctor.errors import ProtocolError, RunFolderError, WriteFailed
from proctor.rl.link.links import ActorPosition, ReceivedTransition
from proctor.rl.replay.journal import Journal, complete_frames, frame
from proctor.rl.transitions import Transition
from tests.refusals import refuses
from tests.unit.rl.transition_cases import assert_same, episode

SMALL = 2000
"""Segments of a few records."""


def numbered(steps: list[Transition], actor: str = "a", first: int = 1) -> list[ReceivedTransition]:
    return [ReceivedTransition(actor, first + i, step) for i, step in enumerate(steps)]


def written(folder: Path, records: list[ReceivedTransition], segment_bytes: int = SMALL) -> Journal:
    journal = Journal(folder, segment_bytes=segment_bytes)
    for record in records:
        journal.append(record)
    journal.sync()
    return journal


def check(journal: Journal, expected: list[ReceivedTransition], first: int = 0) -> None:
    found = list(journal.read(first, first + len(expected)))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.actor, one.number) == (other.actor, other.number)
        assert_same(one.transition, other.transition)


def two_actors() -> list[ReceivedTransition]:
    one, two = numbered(episode(7, 1), "a"), numbered(episode(5, 2, truncated=True), "b")
    lerobots = [ReceivedTransition("c", None, step) for step in episode(3, 3)]
    return [*one[:4], *two[:2], *one[4:], *lerobots, *two[2:]]


def test_a_journal_gives_back_what_was_appended(tmp_path: Path) -> None:
    records = two_actors()
    written(tmp_path, records)
    journal = Journal(tmp_path)

    check(journal, records)
    check(journal, records[4:9], 4)
    assert len(journal) == len(records)
    assert len(list(tmp_path.iterdir())) > 2
    assert journal.positions == {"a": ActorPosition(7, 1, 7), "b": ActorPosition(5, 1, 5)}


def test_the_end_of_an_interrupted_write_is_removed_wherever_it_was_cut(tmp_path: Path) -> None:
    records = numbered(episode(3, 1))
    written(tmp_path, records[:2], segment_bytes=10**6)
    path = next(tmp_path.iterdir())
    before = path.read_bytes()
    written(tmp_path, records[2:], segment_bytes=10**6)
    whole = path.read_bytes()

    for cut in range(len(before), len(whole), 13):
        for tail in (b"", bytes(3)):
            path.write_bytes(whole[:cut] + tail)
            check(Journal(tmp_path), records[:2])
    check(written(tmp_path, records[2:]), records)


def test_a_segment_that_was_only_begun_is_removed(tmp_path: Path) -> None:
    records = numbered(episode(4, 1))
    written(tmp_path, records)
    (tmp_path / "000000000004.journal").write_bytes(b"\x80\0\0")
    journal = Journal(tmp_path, segment_bytes=1)

    assert len(journal) == 4
    journal.append(ReceivedTransition("a", 5, episode(1, 2)[0]))
    journal.sync()
    assert len(Journal(tmp_path)) == 5


def test_damage_before_the_end_is_refused(tmp_path: Path) -> None:
    written(tmp_path, numbered(episode(3, 1)), segment_bytes=10**6)
    path = next(tmp_path.iterdir())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    with pytest.raises(RunFolderError) as caught:
        Journal(tmp_path)
    assert caught.value.code == "rl.journal-damaged"


def test_damage_in_an_earlier_segment_is_refused_when_it_is_read(tmp_path: Path) -> None:
    journal = written(tmp_path, numbered(episode(9, 1)))
    path = min(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(RunFolderError) as caught:
        list(journal.read(0, 9))
    assert caught.value.code == "rl.journal-damaged"


def test_old_segments_are_dropped_and_positions_kept(tmp_path: Path) -> None:
    records = two_actors()
    journal = written(tmp_path, records)
    n_files, positions = len(list(tmp_path.iterdir())), journal.positions
    journal.drop_before(9)

    assert 0 < journal.first <= 9
    assert len(list(tmp_path.iterdir())) < n_files
    again = Journal(tmp_path)
    assert len(again) == len(records)
    assert again.positions == positions
    check(again, records[9:], 9)
    with pytest.raises(RunFolderError) as caught:
        list(again.read(0, 9))
    assert caught.value.code == "rl.journal-incomplete"


@pytest.mark.parametrize("segment_bytes", [SMALL, 10**6])
def test_a_truncated_journal_continues_with_other_records(
    tmp_path: Path, segment_bytes: int
) -> None:
    records, others = numbered(episode(9, 1)), numbered(episode(9, 2))
    for length in range(9):
        folder = tmp_path / str(length)
        journal = written(folder, records, segment_bytes)
        journal.truncate(length)
        assert len(journal) == length
        for record in others[length:]:
            journal.append(record)
        journal.sync()
        check(Journal(folder), [*records[:length], *others[length:]])


def test_a_wrong_transition_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    journal = written(tmp_path, numbered(episode(2, 1)))
    with pytest.raises(ProtocolError):
        journal.append(ReceivedTransition("a", 3, episode(1, size=None)[0]))
    journal.sync()

    assert len(Journal(tmp_path)) == 2


def n_synced_until_failure(folder: Path, records: list[ReceivedTransition]) -> int:
    journal = Journal(folder, segment_bytes=10**6)
    for i, record in enumerate(records):
        journal.append(record)
        try:
            journal.sync()
        except WriteFailed:
            return i
    raise AssertionError("the disk was never full")


def test_a_full_disk_leaves_only_whole_records(tmp_path: Path) -> None:
    records = numbered(episode(50, 1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        synced = n_synced_until_failure(tmp_path, records)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert synced > 0
    check(Journal(tmp_path), records[:synced])


def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from proctor.rl.replay.journal import complete_frames, frame
from proctor.rl.replay.journal import Journal
from tests.unit.rl.test_journal import SMALL, numbered
from tests.refusals import refuses
from tests.unit.rl.transition_cases import episode
journal = Journal(Path(sys.argv[1]), segment_bytes=SMALL)
for i, record in enumerate(numbered(episode(5000, 1))):
    journal.append(record)
    if i % 3 == 2:
        journal.sync()
        print(i + 1, flush=True)
"""
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(12)]
    writer.kill()
    acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]
    writer.wait()

    journal = Journal(tmp_path)
    assert len(journal) >= acknowledged[-1]
    check(journal, numbered(episode(5000, 1))[: len(journal)])


def record_of(content: bytes) -> tuple[bytes, bytes]:
    """Return a segment's header and its only record."""
    (header, record), _ = complete_frames(content)
    return content[slice(*header)], content[slice(*record)]


def bombs(content: bytes) -> dict[str, bytes]:
    """Return segments that no journal wrote, with right checksums."""
    header, record = record_of(content)
    large = zlib.compressobj(1)
    bomb = b"".join(large.compress(bytes(2**22)) for _ in range(10)) + large.flush()
    image = zlib.compress(bytes(3 * 64 * 64), 1)
    stored = struct.pack("<I", len(image)) + image
    assert record.count(stored) == 2
    schema = json.loads(json.loads(header)["schema"])

    def described(**changes: object) -> bytes:
        head = json.loads(header) | {"schema": json.dumps(schema | changes)}
        return frame(json.dumps(head).encode()) + frame(record)

    positions = json.loads(header) | {"positions": {"a": {"stored": "x"}}}
    return {
        "image": frame(header)
        + frame(record.replace(stored, struct.pack("<I", len(bomb)) + bomb, 1)),
        "short image": frame(header)
        + frame(record.replace(stored, struct.pack("<I", 5) + image[:5], 1)),
        "short record": frame(header) + frame(b"\1\0"),
        "first without images": frame(header) + frame(b"\0" + record[1:]),
        "other shape": described(images={"observation.images.a": [3, 64, 65]}),
        "huge shape": described(images={"observation.images.a": [2**30, 2**30, 3]}),
        "negative shape": described(images={"observation.images.a": [-1, -1]}),
        "shape of text": described(action="ab"),
        "endless number": described(action=[10**400]),
        "other type": described(image_dtype="O"),
        "no header": frame(b"[]") + frame(record),
        "deep header": frame(b"[" * 100_000) + frame(record),
        "position of text": frame(json.dumps(positions).encode()) + frame(record),
    }


def with_image() -> Transition:
    image = {"observation.images.a": np.zeros((3, 64, 64), np.uint8)}
    return Transition(image, np.zeros(2, np.float32), 0.0, image, done=False)


NAMES = [
    "image", "short image", "short record", "first without images", "other shape", "huge shape",
    "negative shape", "shape of text", "endless number", "other type", "no header", "deep header",
    "position of text",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_journal_that_no_learner_wrote_is_refused_and_takes_no_memory(
    tmp_path: Path, name: str
) -> None:
    written(tmp_path, numbered([with_image()]))
    path = next(tmp_path.iterdir())
    path.write_bytes(bombs(path.read_bytes())[name])
    tracemalloc.start()
    try:
        with refuses(RunFolderError, "rl.journal-damaged"):
            Journal(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_files_of_others_in_the_folder_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "abc.journal").write_bytes(b"x")
    with refuses(RunFolderError, "rl.journal-stray"):
        Journal(tmp_path)
    (tmp_path / "abc.journal").unlink()
    (tmp_path / "000000000000.journal").mkdir()
    with refuses(RunFolderError, "rl.journal-damaged"):
        Journal(tmp_path)


def test_a_journal_is_written_while_no_descriptor_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = numbered(episode(6, 1))
    journal = written(tmp_path, records[:3], segment_bytes=10**6)

    def exhausted(*args: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as without:
        without.setattr(os, "open", exhausted)
        for record in records[3:]:
            journal.append(record)
        journal.sync()
    check(Journal(tmp_path), records)


def test_a_disk_that_reports_its_error_on_close_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    ended = False

    def full(fd: int, close: Callable[[int], None] = os.close) -> None:
        close(fd)
        if ended:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "close", full)
    journal = written(tmp_path, numbered(episode(6, 1)), segment_bytes=10**6)
    ended = True
    del journal
    gc.collect()
    ended = False
    assert raised == []
    assert len(Journal(tmp_path)) == 6


def test_the_images_of_few_actors_are_kept(tmp_path: Path) -> None:
    records = [ReceivedTransition(f"a{i % 80}", i, with_image()) for i in range(200)]
    check(written(tmp_path, records, segment_bytes=10**6), records)
