"""A worker's connection to the drawing process (``proctor_worker.drawing``)."""

from __future__ import annotations

import mmap
import os
import socket
from typing import Any

from proctor.benchmarks.isolated.launch import shared_memory
from proctor.errors import PluginError
from proctor.features import Array
from proctor_worker.channel import Channel
from proctor_worker.drawing.scene import DRAW, DRAWN_AT
from proctor_worker.drawing.server import MEMORY_HEAD
from proctor_worker.frames import ChannelClosed, FrameError

PLACES = 8
"""Pictures of one client that may be under way. Memory of those that are not used is not taken."""


class DrawnImage:
    """A picture that is being drawn, or has been."""

    def __init__(self) -> None:
        self.operation: str | None = None
        """What the drawing process replied; None before."""
        self.pixels: Array | None = None  # uint8 [H * W * 3]


class DrawingClient:
    """A connection to a drawing process."""

    def __init__(self, address: str, image_bytes: int) -> None:
        import numpy as np  # help texts import this module

        size = PLACES * image_bytes
        memory = shared_memory(size)
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(address)
                socket.send_fds(connection, [MEMORY_HEAD.pack(size, image_bytes)], [memory])
                self._places = np.frombuffer(mmap.mmap(memory, size), np.uint8)
                self._places = self._places.reshape(PLACES, image_bytes)
            except OSError as error:
                raise _lost(error.strerror or "no connection") from None
            finally:
                os.close(memory)
            reading = connection.detach()
        self._channel = Channel(reading, os.dup(reading))
        self._free = list(range(PLACES))[::-1]  # the first ones are used most
        self._pending: dict[int, DrawnImage] = {}
        self.hello = self._receive()[0]

    def request(
        self, header: dict[str, Any], arrays: dict[str, Array] | None = None
    ) -> dict[str, Any]:
        """Send anything but a draw request, and return the reply."""
        self._send(header, arrays=arrays)
        while True:
            reply, prefix = self._receive()
            if not self._take(reply, prefix):
                return reply

    def draw(self, layout: int, numbers: bytes) -> DrawnImage:
        """Have a scene drawn; ``layout`` is its layout's number in the drawing process."""
        while not self._free:
            self._take(*self._receive())
        place = self._free.pop()
        self._pending[place] = pending = DrawnImage()
        self._send({"op": "draw"}, prefix=DRAW.pack(layout, place) + numbers, key="draw")
        return pending

    def wait(self, pending: DrawnImage) -> None:
        """Wait until the drawing process has replied."""
        while pending.operation is None:
            self._take(*self._receive())

    def _take(self, reply: dict[str, Any], prefix: bytes) -> bool:
        """Return whether ``reply`` is that to a draw request, whose place is free then."""
        if not prefix:
            return False
        (place,) = DRAWN_AT.unpack(prefix)
        pending = self._pending.pop(place)
        self._free.append(place)
        pending.operation = reply["op"]
        if pending.operation == "image":
            pending.pixels = self._places[place].copy()
        return True

    def _send(self, header: dict[str, Any], **parts: Any) -> None:
        try:
            self._channel.send(header, **parts)
        except ChannelClosed as error:
            raise _lost(str(error)) from None

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        try:
            reply, prefix, _ = self._channel.receive()
        except (ChannelClosed, FrameError) as error:
            raise _lost(str(error)) from None
        if reply["op"] == "failed":
            self._take(reply, prefix)
            raise PluginError(f"warp cannot draw this scene: {reply['text']}", code="render.failed")
        return reply, prefix

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def _lost(why: str) -> PluginError:
    """Return the error that ends the run: no image can be drawn any more."""
    return PluginError(
        f"the drawing process of --env.renderer=warp has ended ({why}); resume the run",
        code="render.process-ended",
    )
