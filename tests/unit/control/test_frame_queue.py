"""Frames reach the dataset in order and complete, however slow the encoder is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.control.loop.frame_queue import FrameQueue, default_capacity, short_thread_switches
from proctor.datasets.reader import open as open_dataset
from proctor.datasets.writer import DatasetWriter
from proctor.errors import DatasetError

FEATURES = {
    "action": {"dtype": "float32", "shape": [1], "names": ["x"]},
    "observation.images.front": {
        "dtype": "image",
        "shape": [8, 8, 3],
        "names": ["height", "width", "channels"],
    },
}


def frame(value: int) -> dict[str, Any]:
    image = np.full((8, 8, 3), value, np.uint8)
    return {"action": np.array([value], np.float32), "observation.images.front": image}


def add_many(queue: FrameQueue, n: int) -> None:
    for value in range(n):
        queue.add(frame(value % 256), "task")
        time.sleep(0.001)


@pytest.fixture
def writer(tmp_path: Path) -> DatasetWriter:
    return DatasetWriter.create(tmp_path / "data", 10, FEATURES)


def slow_down(writer: DatasetWriter, seconds: float) -> None:
    """Let the writer take ``seconds`` for every frame."""
    add: Callable[[Mapping[str, Any], str], None] = writer.add_frame

    def slow(frame: Mapping[str, Any], task: str) -> None:
        time.sleep(seconds)
        add(frame, task)

    writer.add_frame = slow  # type: ignore[method-assign]


def test_a_full_queue_makes_the_loop_wait_and_drops_nothing(writer: DatasetWriter) -> None:
    slow_down(writer, 0.01)
    queue, saved = FrameQueue(writer, capacity=3), []
    for value in range(40):
        queue.add(frame(value), "task")
    queue.save(saved.append)
    queue.flush()
    assert queue.waited_s > 0.1
    assert queue.longest == 3
    queue.close()
    writer.release()
    assert saved == [0]
    dataset = open_dataset(writer.root)
    rows = dataset.batch(np.arange(40))
    assert rows["action"].ravel().tolist() == list(range(40))
    assert rows["observation.images.front"][:, 0, 0, 0].tolist() == list(range(40))


def test_a_slow_encoder_does_not_delay_a_loop_with_room_in_the_queue(
    writer: DatasetWriter,
) -> None:
    slow_down(writer, 0.02)
    queue = FrameQueue(writer, capacity=100)
    for value in range(10):
        queue.add(frame(value), "task")
    assert queue.waited_s == 0
    queue.close()
    writer.release()


def test_an_episode_is_saved_while_the_next_one_is_recorded(writer: DatasetWriter) -> None:
    queue, saved = FrameQueue(writer, capacity=100), []
    for number in range(3):
        for value in range(number + 1):
            queue.add(frame(value), "task")
        queue.save(saved.append)
    queue.flush()
    queue.close()
    writer.release()
    assert saved == [0, 1, 2]
    assert open_dataset(writer.root).spans.tolist() == [[0, 1], [1, 3], [3, 6]]


def test_discarded_and_removed_episodes_leave_no_frame(writer: DatasetWriter) -> None:
    queue, saved = FrameQueue(writer), []
    for value, job in ((1, "save"), (2, "discard"), (3, "save"), (4, "save")):
        queue.add(frame(value), "task")
        if job == "save":
            queue.save(saved.append)
        else:
            queue.discard()
    queue.remove_last()
    queue.flush()
    queue.close()
    writer.release()
    assert saved == [0, 1, 2]
    dataset = open_dataset(writer.root)
    assert dataset.batch(np.arange(2))["action"].ravel().tolist() == [1, 3]


def test_a_failed_write_is_raised_in_the_loop_and_later_jobs_do_nothing(
    writer: DatasetWriter,
) -> None:
    queue = FrameQueue(writer, capacity=2)
    queue.add({"action": np.zeros(7, np.float32)}, "task")
    with pytest.raises(DatasetError):
        add_many(queue, 1000)
    with pytest.raises(DatasetError):
        queue.flush()
    queue.close()
    assert writer.n_episodes == 0
    writer.release()


def test_a_loop_that_waits_for_room_hears_of_a_failure(writer: DatasetWriter) -> None:
    go = threading.Event()

    def fail(frame: Mapping[str, Any], task: str) -> None:
        go.wait(60)
        raise DatasetError("disk full", code="test.full")

    writer.add_frame = fail  # type: ignore[method-assign]
    queue = FrameQueue(writer, capacity=1)
    threading.Timer(0.05, go.set).start()
    with pytest.raises(DatasetError) as error:
        add_many(queue, 100)
    assert error.value.code == "test.full"
    queue.close()
    writer.release()


def test_the_capacity_is_bounded_by_memory(writer: DatasetWriter) -> None:
    assert default_capacity(writer) == 900
    writer.release()


def test_threads_take_turns_more_often_only_inside_the_block() -> None:
    before = sys.getswitchinterval()
    with short_thread_switches():
        assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before
