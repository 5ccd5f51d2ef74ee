"""The reader thread of a camera, on a source that fails as a test wants."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from proctor.errors import DeviceNotConnected
from proctor.features import Array
from proctor.robots.base import ImageShape
from proctor.robots.cameras import reader
from proctor.robots.cameras.reader import (
    FrameMissing,
    FramesEnded,
    FrameSource,
    ReaderCamera,
    ReaderLimits,
)

LIMITS = ReaderLimits(connect_s=60.0, reconnect_s=60.0)


class HandClock:
    """A clock that a test sets."""

    moment = 0.0

    def now(self) -> float:
        return self.moment

    def sleep_until(self, moment: float) -> None:
        self.moment = moment


class HandSource(FrameSource):
    """Delivers what a test puts into ``feed``: images, or exceptions to raise.

    Where nothing is fed, a read waits until the test leaves.
    """

    description = "test camera"
    shape: ImageShape = (2, 3, 3)

    def __init__(self) -> None:
        self.feed: queue.Queue[int | Exception] = queue.Queue()
        self.opened = self.closed = 0
        self.refusal: Exception | None = None
        self.threads: set[str] = set()
        self.leaving = False

    def open(self) -> None:
        self.opened += 1
        self.threads.add(threading.current_thread().name)
        if self.refusal is not None:
            raise self.refusal

    def read(self) -> Array:
        while True:
            try:
                given = self.feed.get(timeout=0.02)
                break
            except queue.Empty:
                if self.leaving:
                    raise FrameMissing("nothing was fed") from None
        if isinstance(given, Exception):
            raise given
        return np.full((2, 3, 3), given, np.uint8)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PAUSE_S", 0.001)
    monkeypatch.setattr(reader, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(reader, "_LATE_S", 0.05)


@pytest.fixture
def source() -> HandSource:
    return HandSource()


@pytest.fixture
def camera(source: HandSource) -> Iterator[ReaderCamera]:
    camera = ReaderCamera(source, HandClock(), LIMITS)
    yield camera
    source.leaving = True
    camera.disconnect()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it did not happen within 60 s"
        time.sleep(0.002)


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(DeviceNotConnected) as refused:
        call()
    return refused.value.code


def test_connect_waits_for_the_first_image(camera: ReaderCamera, source: HandSource) -> None:
    source.feed.put(7)

    camera.connect()

    assert camera.is_connected
    assert camera.latest().number == 1
    assert camera.latest().image.tolist() == np.full((2, 3, 3), 7).tolist()


def test_an_image_cannot_be_changed_by_one_of_its_users(
    camera: ReaderCamera, source: HandSource
) -> None:
    source.feed.put(7)
    camera.connect()

    with pytest.raises(ValueError, match="read-only"):
        camera.latest().image[0] = 0


def test_the_same_image_again_has_the_same_number_and_is_counted(
    camera: ReaderCamera, source: HandSource
) -> None:
    source.feed.put(1)
    camera.connect()
    first, again = camera.latest(), camera.latest()
    source.feed.put(2)
    wait_for(lambda: camera.counts.frames == 2)
    newer = camera.latest()

    assert (first.number, again.number, newer.number) == (1, 1, 2)
    assert camera.counts.repeats == 1


def test_images_between_two_calls_are_skipped(camera: ReaderCamera, source: HandSource) -> None:
    source.feed.put(1)
    camera.connect()
    for value in (2, 3, 4):
        source.feed.put(value)
    wait_for(lambda: camera.counts.frames == 4)

    assert camera.latest().number == 4
    assert camera.latest().image[0, 0, 0] == 4


def test_the_time_of_an_image_is_of_the_robots_clock(source: HandSource) -> None:
    clock = HandClock()
    clock.moment = 12.5
    camera = ReaderCamera(source, clock, LIMITS)
    source.feed.put(1)
    camera.connect()
    clock.moment = 12.8

    assert camera.latest(max_age_s=0.5).captured_at == 12.5
    clock.moment = 13.1
    assert code_of(lambda: camera.latest(max_age_s=0.5)) == "camera.stale"
    assert camera.latest(max_age_s=1.0).number == 1
    source.leaving = True
    camera.disconnect()


def test_a_late_image_is_waited_for_a_moment(
    source: HandSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a pause of the computer: the reader's thread is no faster than the loop's."""
    monkeypatch.setattr(reader, "_LATE_S", 60.0)
    clock = HandClock()
    camera = ReaderCamera(source, clock, LIMITS)
    source.feed.put(1)
    camera.connect()
    clock.moment = 5.0
    threading.Timer(0.05, source.feed.put, (2,)).start()

    assert camera.latest(max_age_s=0.5).number == 2
    source.leaving = True
    camera.disconnect()


def test_latest_does_not_wait_for_the_next_image(camera: ReaderCamera, source: HandSource) -> None:
    source.feed.put(1)
    camera.connect()  # from now on a read of the source waits
    numbers: list[int] = []
    loop = threading.Thread(target=lambda: numbers.append(camera.latest().number), daemon=True)
    loop.start()
    loop.join(60)

    assert numbers == [1]


def test_a_source_that_cannot_be_opened_refuses_connect(
    camera: ReaderCamera, source: HandSource
) -> None:
    source.refusal = DeviceNotConnected("it is not there", code="camera.not-found")

    assert code_of(camera.connect) == "camera.not-found"
    assert not camera.is_connected
    assert code_of(camera.latest) == "camera.not-connected"


def test_a_source_without_images_refuses_connect(source: HandSource) -> None:
    camera = ReaderCamera(source, HandClock(), ReaderLimits(connect_s=0.1))
    source.leaving = True

    assert code_of(camera.connect) == "camera.no-image"
    assert source.closed == 1


def test_a_failed_connect_can_be_repeated(camera: ReaderCamera, source: HandSource) -> None:
    source.refusal = DeviceNotConnected("not yet", code="camera.not-found")
    assert code_of(camera.connect) == "camera.not-found"
    source.refusal = None
    source.feed.put(1)

    camera.connect()

    assert camera.latest().number == 1


def test_a_second_connect_is_refused(camera: ReaderCamera, source: HandSource) -> None:
    source.feed.put(1)
    camera.connect()

    assert code_of(camera.connect) == "camera.already-connected"
    assert camera.is_connected


def test_images_of_the_warm_up_are_dropped(source: HandSource) -> None:
    camera = ReaderCamera(source, HandClock(), ReaderLimits(connect_s=60.0, warmup_s=0.1))
    source.feed.put(1)
    started = time.monotonic()

    camera.connect()

    assert time.monotonic() - started >= 0.1
    source.leaving = True
    camera.disconnect()


def test_a_source_that_ends_after_its_first_image_is_connected(
    camera: ReaderCamera, source: HandSource
) -> None:
    source.feed.put(1)
    source.feed.put(FramesEnded())

    camera.connect()

    wait_for(lambda: not camera.is_connected)
    assert code_of(camera.latest) == "camera.ended"


def test_single_failed_reads_are_counted_and_survived(
    camera: ReaderCamera, source: HandSource
) -> None:
    source.feed.put(1)
    camera.connect()
    source.feed.put(FrameMissing("a glitch"))
    source.feed.put(2)
    wait_for(lambda: camera.counts.frames == 2)

    assert camera.counts.failed_reads == 1
    assert (camera.counts.reconnects, source.opened) == (0, 1)


def test_a_source_that_fails_repeatedly_is_opened_again(
    camera: ReaderCamera, source: HandSource
) -> None:
    source.feed.put(1)
    camera.connect()
    for _ in range(5):
        source.feed.put(FrameMissing("unplugged"))
    wait_for(lambda: source.opened >= 2)
    source.feed.put(2)
    wait_for(lambda: camera.counts.frames == 2)

    assert camera.is_connected
    assert camera.latest().number == 2
    assert camera.counts.reconnects == source.opened - 1 == source.closed


def test_a_source_that_stays_away_ends_the_reader(
    camera: ReaderCamera, source: HandSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.feed.put(1)
    camera.connect()
    source.refusal = DeviceNotConnected("no such device")
    seconds = itertools.count(0, 25)  # every look at the clock is 25 s later
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=seconds.__next__))
    for _ in range(5):
        source.feed.put(FrameMissing("unplugged"))
    wait_for(lambda: "test camera" not in {thread.name for thread in threading.enumerate()})

    assert code_of(camera.latest) == "camera.gone"
    assert not camera.is_connected
    assert camera.counts.reconnects == 3


def test_the_end_of_a_source_is_told(camera: ReaderCamera, source: HandSource) -> None:
    source.feed.put(1)
    camera.connect()
    source.feed.put(FramesEnded())
    wait_for(lambda: not camera.is_connected)

    assert code_of(camera.latest) == "camera.ended"


def test_a_crash_of_the_reader_is_told_with_its_cause(
    camera: ReaderCamera, source: HandSource
) -> None:
    source.feed.put(1)
    camera.connect()
    source.feed.put(ZeroDivisionError("a driver's bug"))
    wait_for(lambda: not camera.is_connected)

    with pytest.raises(DeviceNotConnected, match="a driver's bug") as told:
        camera.latest()
    assert told.value.code == "camera.reader-ended"
    assert isinstance(told.value.__cause__, ZeroDivisionError)


def test_disconnect_closes_the_source_and_may_be_repeated(
    camera: ReaderCamera, source: HandSource
) -> None:
    source.feed.put(1)
    camera.connect()
    source.leaving = True
    camera.disconnect()
    camera.disconnect()

    assert source.closed == 1
    assert not camera.is_connected
    assert "test camera" not in {thread.name for thread in threading.enumerate()}
    assert source.threads == {"test camera"}


def test_numbers_begin_anew_after_a_new_connect(camera: ReaderCamera, source: HandSource) -> None:
    source.feed.put(1)
    camera.connect()
    source.leaving = True
    camera.disconnect()
    source.feed.put(2)
    camera.connect()

    assert camera.latest().number == 1
    assert camera.counts.repeats == 0
