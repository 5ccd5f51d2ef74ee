"""Frames between Proctor and a world's process, and the package's syntax."""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import proctor_worker
from proctor_worker.channel import Channel
from proctor_worker.frames import HEAD, LARGEST_PAYLOAD, MAGIC, ChannelClosed, FrameError
from proctor_worker.shared_ring import SharedRing

FILES = sorted(Path(proctor_worker.__file__).parent.rglob("*.py"))


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, int]]:
    """Two ends with 64 kB of shared memory, and a descriptor to write any bytes to the second."""
    ours, theirs = socket.socketpair()
    memory = os.memfd_create("test")
    os.ftruncate(memory, 2**16)
    raw = os.dup(ours.fileno())
    made = []
    for end in (ours, theirs):
        descriptor = end.detach()
        made.append(Channel(descriptor, os.dup(descriptor), SharedRing(memory, 2**16)))
    yield made[0], made[1], raw
    for channel in made:
        channel.close()
    os.close(raw)
    os.close(memory)


def test_arrays_arrive_as_they_were_sent_in_the_frame_or_in_shared_memory(
    ends: tuple[Channel, Channel, int],
) -> None:
    sender, receiver, _ = ends
    rng = np.random.default_rng(0)
    for size in (0, 3, 20_000, 20_000, 20_000, 20_000, 70_000, 20_000):  # 64 kB are never enough
        sent = {
            "image": rng.integers(0, 255, (size,), np.uint8),
            "state": rng.normal(size=(2, 3)),
            "scalar": np.float32(1.5),
        }
        sender.send({"op": "seen"}, sent)
        header, prefix, arrays = receiver.receive()
        assert header["op"] == "seen"
        assert len(prefix) == 0
        for name, value in sent.items():
            assert np.array_equal(arrays[name], value)
            assert arrays[name].shape == np.shape(value)
            assert arrays[name].dtype == value.dtype


def test_observations_in_flight_do_not_overwrite_each_other(
    ends: tuple[Channel, Channel, int],
) -> None:
    sender, receiver, _ = ends
    for number in range(5):
        sender.send({"op": "seen"}, {"image": np.full(20_000, number, np.uint8)})
    for number in range(5):
        assert (receiver.receive()[2]["image"] == number).all()


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE, NOT A FRAME",
        HEAD.pack(MAGIC, 10, LARGEST_PAYLOAD + 1),
        HEAD.pack(MAGIC, 2**32 - 1, 0),
        HEAD.pack(MAGIC, 2, 0) + b"[]",
        HEAD.pack(MAGIC, 4, 0) + b"\xff\xff{}",
        HEAD.pack(MAGIC, 33, 0) + b'{"arrays":[["a","|O",[1],false]]}',
        HEAD.pack(MAGIC, 34, 0) + b'{"arrays":[["a","<f8",[9],false]]}',
        HEAD.pack(MAGIC, 34, 8) + b'{"arrays":[["a","|u1",[99],true]]}' + b"\xff" * 8,
        HEAD.pack(MAGIC, 37, 8) + b'{"arrays":[["a","|u1",[99999],true]]}' + b"\0" * 8,
    ],
)
def test_bytes_that_are_no_frame_are_refused_before_memory_is_allocated(
    ends: tuple[Channel, Channel, int], sent: bytes
) -> None:
    _, receiver, raw = ends
    os.write(raw, sent)
    with pytest.raises(FrameError):
        receiver.receive()


def test_the_end_of_the_other_side_is_told(ends: tuple[Channel, Channel, int]) -> None:
    sender, receiver, raw = ends
    os.write(raw, HEAD.pack(MAGIC, 10, 0)[:5])
    socket.socket(fileno=os.dup(raw)).shutdown(socket.SHUT_RDWR)
    with pytest.raises(ChannelClosed):
        receiver.receive()
    with pytest.raises(ChannelClosed):
        sender.send({"op": "on"})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_package_is_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
