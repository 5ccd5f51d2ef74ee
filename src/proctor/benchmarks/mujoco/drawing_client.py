"""A worker's connection to the drawing process (``proctor_worker.drawing``)."""

from __future__ import annotations

import os
import socket
from collections.abc import Hashable
from typing import Any

from proctor.benchmarks.foreign.launch import shared_bytes, shared_memory
from proctor.errors import PluginError
from proctor.features import Array
from proctor_worker.channel import Channel
from proctor_worker.drawing.server import MEMORY_HEAD
from proctor_worker.frames import ChannelClosed, FrameError
from proctor_worker.shared_ring import SharedRing


class DrawingClient:
    """A connection to a drawing process."""

    def __init__(self, address: str, image_bytes: int) -> None:
        size = shared_bytes([image_bytes])
        memory = shared_memory(size)
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(address)
                socket.send_fds(connection, [MEMORY_HEAD.pack(size)], [memory])
                ring = SharedRing(memory, size)
            except OSError as error:
                raise _lost(error.strerror or "no connection") from None
            finally:
                os.close(memory)
            reading = connection.detach()
        writing = os.dup(reading)
        self._channel = Channel(reading, writing, ring)
        self._requests = Channel(reading, writing)  # only the other side writes to the ring
        self.hello = self._receive()[0]

    def request(
        self, header: dict[str, Any], arrays: dict[str, Array], key: Hashable = None
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Send a request and return header and arrays of the reply.

        ``key``, if given, determines the header, which is then encoded once.

        Raises:
            PluginError: the drawing process has ended, or cannot draw this scene.
        """
        try:
            self._requests.send(header, arrays, key=key)
        except ChannelClosed as error:
            raise _lost(str(error)) from None
        return self._receive()

    def _receive(self) -> tuple[dict[str, Any], dict[str, Array]]:
        try:
            header, _, arrays = self._channel.receive()
        except (ChannelClosed, FrameError) as error:
            raise _lost(str(error)) from None
        if header["op"] == "failed":
            raise PluginError(
                f"warp cannot draw this scene: {header['text']}", code="render.failed"
            )
        return header, arrays

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def _lost(why: str) -> PluginError:
    """Return the error that ends the run: no image can be drawn any more."""
    return PluginError(
        f"the drawing process of --env.renderer=warp has ended ({why}); resume the run",
        code="render.process-ended",
    )
