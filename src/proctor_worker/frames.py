"""Frames between Proctor and a world's process: a JSON header and raw arrays, never pickle.

A frame is a fixed head (magic, length of the header, length of the payload), the header as JSON,
and the payload. The header's ``arrays`` lists name, dtype, shape and place of each array. Large
arrays lie in shared memory, if both sides have it, others in the payload.
"""

import json
import mmap
import os
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, Dict, List, Mapping, Optional, Tuple

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

MAGIC = b"PRW1"
HEAD = struct.Struct("<4sIQ")
LARGEST_HEADER, LARGEST_PAYLOAD = 2**26, 2**31
"""Bytes. A longer frame is refused before memory is allocated for it."""
SHARED_FROM = 2**14
"""Bytes from which an array goes through shared memory."""
_COUNTER = 8
"""Bytes at the start of the shared memory: how many bytes the reader has consumed, uint64."""


class ChannelClosed(Exception):
    """The other side is gone."""


class FrameError(Exception):
    """The other side sent bytes that are no frame."""


class SharedRing:
    """Shared memory that one side writes arrays to and the other side reads them from.

    Both sides map the same memory. The writer appends; the reader adds to the counter what it has
    read. An array that finds no room goes through the channel instead.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._memory = mmap.mmap(descriptor, size)
        self._consumed = np.frombuffer(self._memory, np.uint64, 1)
        self._bytes = np.frombuffer(self._memory, np.uint8, size - _COUNTER, _COUNTER)
        self._written = 0

    def put(self, array: "np.ndarray[Any, Any]") -> Optional[int]:
        """Copy an array (C-contiguous) into the memory; return its position, None without room."""
        size, capacity = array.nbytes, self._bytes.size
        at = self._written % capacity
        skipped = capacity - at if at + size > capacity else 0
        if size > capacity or self._written + skipped + size - int(self._consumed[0]) > capacity:
            return None
        self._written += skipped
        at = self._written % capacity
        self._bytes[at : at + size] = array.reshape(-1).view(np.uint8)
        self._written += size
        return self._written - size

    def take(self, position: int, size: int) -> "np.ndarray[Any, Any]":
        """Return a copy of ``size`` bytes at ``position``, and free them for the writer.

        Raises:
            FrameError: the position lies outside the memory.
        """
        at = position % self._bytes.size
        if position < 0 or at + size > self._bytes.size:
            raise FrameError("an array lies outside the shared memory")
        taken = self._bytes[at : at + size].copy()
        self._consumed[0] = position + size
        return taken


class Channel:
    """One end of the connection: sends and receives frames over two file descriptors."""

    def __init__(self, reading: int, writing: int, ring: Optional[SharedRing] = None) -> None:
        self._reader: BinaryIO = os.fdopen(reading, "rb", 2**16)
        self._writing = writing
        self._ring = ring

    def send(self, header: Mapping[str, Any], arrays: Optional[Mapping[str, Any]] = None) -> None:
        """Send a frame.

        Raises:
            ChannelClosed: the other side is gone.
        """
        listed, parts = self.place(arrays or {})
        self.send_encoded(encode_header({**header, "arrays": listed}), parts)

    def place(self, arrays: Mapping[str, Any]) -> Tuple[List[List[Any]], List[bytes]]:
        """Return the header's entries for ``arrays``, and the bytes of those in the payload."""
        listed: List[List[Any]] = []
        parts: List[bytes] = []
        for name, value in arrays.items():
            array = np.ascontiguousarray(value)
            position = None
            if self._ring is not None and array.nbytes >= SHARED_FROM:
                position = self._ring.put(array)
            if position is None:
                parts.append(array.tobytes())
            # ascontiguousarray gives a scalar one axis: the shape is that of the value
            listed.append([name, array.dtype.str, list(np.shape(value)), position])
        return listed, parts

    def send_encoded(self, header: bytes, parts: List[bytes]) -> None:
        """Send a frame whose header is encoded already."""
        payload = b"".join(parts)
        frame = b"".join((HEAD.pack(MAGIC, len(header), len(payload)), header, payload))
        left = memoryview(frame)
        try:
            while left:
                left = left[os.write(self._writing, left) :]
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self) -> Tuple[Dict[str, Any], memoryview, Dict[str, "np.ndarray[Any, Any]"]]:
        """Wait for a frame; return its header, the payload's bytes before the arrays, the arrays.

        The header is shared between equal frames: do not change it.

        Raises:
            ChannelClosed: the other side is gone.
            FrameError: the bytes are no frame, or a frame is too large.
        """
        magic, header_size, payload_size = HEAD.unpack(self._read(HEAD.size))
        if magic != MAGIC:
            raise FrameError("no frame, but %r" % (bytes(magic),))
        if header_size > LARGEST_HEADER or payload_size > LARGEST_PAYLOAD:
            raise FrameError(
                "a frame of %d bytes; at most %d are allowed"
                % (header_size + payload_size, LARGEST_HEADER + LARGEST_PAYLOAD)
            )
        header = decode_header(self._read(header_size))
        payload = memoryview(self._read(payload_size))
        listed = [
            (name, *_array_size(kind, tuple(shape)), shape, position)
            for name, kind, shape, position in header["arrays"]
        ]
        start = at = len(payload) - sum(entry[2] for entry in listed if entry[4] is None)
        if start < 0:
            raise FrameError("arrays that are longer than their frame")
        arrays: Dict[str, "np.ndarray[Any, Any]"] = {}
        for name, dtype, size, shape, position in listed:
            if position is None:
                taken = np.frombuffer(payload[at : at + size], np.uint8).copy()
                at += size
            elif self._ring is None:
                raise FrameError("an array in shared memory, and there is none")
            else:
                taken = self._ring.take(position, size)
            arrays[name] = taken.view(dtype).reshape(shape)
        return header, payload[:start], arrays

    def _read(self, size: int) -> bytes:
        try:
            data = self._reader.read(size)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if len(data) < size:
            raise ChannelClosed("the connection has ended")
        return data

    def skip_to_frame(self, most: int) -> bytes:
        """Skip bytes until the next frame begins; return them.

        Other programs may write to stdout before the server starts.

        Raises:
            ChannelClosed: the other side is gone; its argument is the skipped text.
            FrameError: there is no frame within ``most`` bytes.
        """
        skipped = b""
        while True:
            found = self._reader.peek(len(MAGIC))  # type: ignore[attr-defined]
            if not found:
                raise ChannelClosed(skipped.decode("utf-8", "replace"))
            if found.startswith(MAGIC):
                return skipped
            if len(skipped) > most:
                raise FrameError("no frame within %d bytes" % most)
            skipped += self._reader.read(1)

    def close(self) -> None:
        """Close both directions."""
        os.close(self._writing)
        self._reader.close()


def encode_header(header: Mapping[str, Any]) -> bytes:
    """Return a header as JSON."""
    return json.dumps(header, separators=(",", ":")).encode()


@lru_cache(maxsize=256)
def decode_header(encoded: bytes) -> Dict[str, Any]:
    """Return the header; equal bytes give the same dict.

    Raises:
        FrameError: it is no JSON object with a list of arrays.
    """
    try:
        header = json.loads(encoded.decode())
    except (ValueError, RecursionError) as error:
        raise FrameError("a header that is not JSON: %s" % error) from None
    if not isinstance(header, dict) or not isinstance(header.get("arrays"), list):
        raise FrameError("a header without a list of arrays")
    for entry in header["arrays"]:
        if not isinstance(entry, list) or len(entry) != 4:
            raise FrameError("a header with an unknown array entry")
    return header


@lru_cache(maxsize=256)
def _array_size(kind: str, shape: Tuple[int, ...]) -> Tuple["np.dtype[Any]", int]:
    """Return dtype and bytes of an array.

    Raises:
        FrameError: it is no array of numbers.
    """
    try:
        dtype = np.dtype(kind)
    except (TypeError, ValueError) as error:
        raise FrameError("an array of unknown type %r" % kind) from error
    if dtype.kind not in "biuf" or any(not isinstance(n, int) or n < 0 for n in shape):
        raise FrameError("an array of type %r and shape %r" % (kind, shape))
    size = dtype.itemsize
    for n in shape:
        size *= n
    return dtype, size
