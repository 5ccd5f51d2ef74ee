"""One end of the connection between Proctor and a world's process."""

import os
import select
from typing import TYPE_CHECKING, Any, Dict, Hashable, List, Mapping, Optional, Tuple, Union

from proctor_worker.frames import (
    HEAD,
    LARGEST_HEADER,
    LARGEST_PAYLOAD,
    MAGIC,
    POSITION,
    ChannelClosed,
    FrameError,
    Layout,
    decode_header,
    encode_frame,
    encode_header,
)
from proctor_worker.shared_ring import SHARED_FROM, SharedRing
from proctor_worker.spinning import SpinWait

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

_READ_BYTES = 2**16
_MOST_HEADERS = 256


class Channel:
    """Sends and receives frames over two file descriptors.

    ``spins``: wait for a frame without sleeping while a core is free. A server that reads only
    what has arrived need not.
    """

    def __init__(
        self, reading: int, writing: int, ring: Optional[SharedRing] = None, *, spins: bool = True
    ) -> None:
        self._reading, self._writing = reading, writing
        self._ring = ring
        self._poll = select.poll()
        self._poll.register(reading, select.POLLIN)
        self._spin = SpinWait(reading) if spins else None
        self._data: Union[bytes, bytearray] = b""
        self._at = 0
        """Where in ``_data`` the next frame begins."""
        self._headers: Dict[Hashable, bytes] = {}
        self._held: List[bytes] = []
        """Frames that are sent together with the next one."""

    @property
    def ring(self) -> Optional[SharedRing]:
        """The shared memory, if there is any."""
        return self._ring

    @property
    def has_bytes(self) -> bool:
        """Whether bytes of the next frame have been read already."""
        return len(self._data) > self._at

    def send(
        self,
        fields: Mapping[str, Any],
        arrays: Optional[Mapping[str, Any]] = None,
        prefix: bytes = b"",
        key: Hashable = None,
        hold: bool = False,
    ) -> None:
        """Send a frame. ``key``, if given, determines ``fields``: the header is encoded once.

        ``hold``: send it together with the next frame that is not held.

        Raises:
            ChannelClosed: the other side is gone.
        """
        layout, parts = self._place(arrays) if arrays else ((), [])
        header = None if key is None else self._headers.get((key, layout))
        if header is None:
            header = encode_header(fields, layout)
            if key is not None:
                if len(self._headers) >= _MOST_HEADERS:
                    self._headers.clear()
                self._headers[key, layout] = header
        self._held.append(encode_frame(header, (prefix, *parts)))
        if hold:
            return
        frame = b"".join(self._held)
        self._held.clear()
        self.send_encoded(frame)

    def send_encoded(self, frame: bytes) -> None:
        """Send what ``encode_frame`` returned.

        Raises:
            ChannelClosed: the other side is gone.
        """
        try:
            sent = os.write(self._writing, frame)
            while sent < len(frame):
                sent += os.write(self._writing, memoryview(frame)[sent:])
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def is_ready(self, timeout_s: float) -> bool:
        """Wait until bytes have arrived or the other side is gone; False after ``timeout_s``."""
        if self.has_bytes:
            return True
        if self._spin is not None:
            self._spin.wait()
        return bool(self._poll.poll(timeout_s * 1000))

    def _place(self, arrays: Mapping[str, Any]) -> Tuple[Layout, List[bytes]]:
        """Return the header's entries for ``arrays``, and their parts of the payload."""
        layout = []
        parts: List[bytes] = []
        for name, value in arrays.items():
            array = np.asarray(value)
            position = None
            if self._ring is not None and array.nbytes >= SHARED_FROM:
                position = self._ring.put(array)
            shared = position is not None
            parts.append(array.tobytes() if position is None else POSITION.pack(position))
            layout.append((name, array.dtype.str, array.shape, shared))
        return tuple(layout), parts

    def receive(self) -> Tuple[Dict[str, Any], bytes, Dict[str, "np.ndarray[Any, Any]"]]:
        """Wait for a frame; return its header's fields, the payload's plain bytes, the arrays.

        The fields are shared between equal frames: do not change them.

        Raises:
            ChannelClosed: the other side is gone.
            FrameError: the bytes are no frame, or a frame is too large.
        """
        self._fill(HEAD.size)
        magic, header_size, payload_size = HEAD.unpack_from(self._data, self._at)
        if magic != MAGIC:
            raise FrameError("no frame, but %r" % (bytes(magic),))
        if header_size > LARGEST_HEADER or payload_size > LARGEST_PAYLOAD:
            raise FrameError(
                "a frame of %d bytes; at most %d are allowed"
                % (header_size + payload_size, LARGEST_HEADER + LARGEST_PAYLOAD)
            )
        self._fill(HEAD.size + header_size + payload_size)
        data, start = self._data, self._at + HEAD.size
        payload = start + header_size
        self._at = payload + payload_size
        header = decode_header(bytes(data[start:payload]))
        at = self._at - header.array_bytes
        if at < payload:
            raise FrameError("arrays that are longer than their frame")
        prefix = bytes(data[payload:at])
        arrays: Dict[str, "np.ndarray[Any, Any]"] = {}
        for name, dtype, shape, shared, size in header.arrays:
            if not shared:
                arrays[name] = np.ndarray(shape, dtype, data, at).copy()
                at += size
            elif self._ring is None:
                raise FrameError("an array in shared memory, and there is none")
            else:
                taken = self._ring.take(POSITION.unpack_from(data, at)[0], size)
                arrays[name] = taken.view(dtype).reshape(shape)
                at += POSITION.size
        return header.fields, prefix, arrays

    def skip_to_frame(self, most: int) -> bytes:
        """Skip bytes until the next frame begins; return them.

        Other programs may write to stdout before the server starts.

        Raises:
            ChannelClosed: the other side is gone; its argument is the skipped text.
            FrameError: there is no frame within ``most`` bytes.
        """
        skipped = bytearray()
        while True:
            try:
                self._fill(len(MAGIC))
            except ChannelClosed:
                skipped += self._data[self._at :]
                raise ChannelClosed(skipped.decode("utf-8", "replace")) from None
            if self._data.startswith(MAGIC, self._at):
                return bytes(skipped)
            if len(skipped) > most:
                raise FrameError("no frame within %d bytes" % most)
            skipped.append(self._data[self._at])
            self._at += 1

    def _fill(self, size: int) -> None:
        """Read until ``size`` bytes of the next frame are there."""
        have = len(self._data) - self._at
        if have >= size:
            return
        if size > _READ_BYTES:
            self._fill_large(size, have)
            return
        while have < size:
            if self._spin is not None:
                self._spin.wait()
            try:
                read = os.read(self._reading, _READ_BYTES)
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not read:
                raise ChannelClosed("the connection has ended")
            self._data = self._data[self._at :] + read if have else read
            self._at = 0
            have = len(self._data)

    def _fill_large(self, size: int, have: int) -> None:
        """Read a frame that is larger than one read, into memory of its own."""
        whole = bytearray(size)
        whole[:have] = self._data[self._at :]
        view = memoryview(whole)
        while have < size:
            try:
                read = os.readv(self._reading, [view[have:]])
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not read:
                raise ChannelClosed("the connection has ended")
            have += read
        self._data, self._at = whole, 0

    def close(self) -> None:
        """Close both directions."""
        os.close(self._writing)
        os.close(self._reading)
