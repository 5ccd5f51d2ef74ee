"""Serves drawing requests of all workers over one listening socket.

A connection begins with the descriptor of shared memory for its pictures. Each client has at most
one request under way. While a batch is drawn, the next requests wait in their sockets; all that
wait are the next batch.
"""

import contextlib
import os
import selectors
import socket
import struct
import sys
import traceback
from typing import Any, Dict, List, Protocol, Sequence, Tuple

from proctor_worker.channel import Channel
from proctor_worker.distributions import interpreter_facts
from proctor_worker.drawing.scene import DrawRequest, request_of_frame
from proctor_worker.frames import ChannelClosed, FrameError
from proctor_worker.guard import start_guard
from proctor_worker.shared_ring import SharedRing

MEMORY_HEAD = struct.Struct("<Q")
"""Size of the shared memory, sent with its descriptor."""
DISTRIBUTIONS = ("mujoco", "mujoco-warp", "warp-lang")
NO_GPU, NOT_INSTALLED = "render.no-gpu", "render.not-installed"


class Drawer(Protocol):
    """What draws: ``WarpDrawer``, or a stand-in of tests."""

    def add_assets(self, key: str, assets: Dict[str, Any]) -> None:
        """Keep a model's meshes, textures and materials under ``key``."""

    def has_assets(self, key: str) -> bool:
        """Return whether requests with these assets can be drawn."""

    def draw(self, requests: Sequence[DrawRequest]) -> Sequence[Any]:
        """Return the pictures of ``requests``, uint8 [H, W, 3] each."""


class DrawingServer:
    """Accepts clients, collects their requests, and answers each batch."""

    def __init__(self, listener: socket.socket, drawer: Drawer, hello: Dict[str, Any]) -> None:
        self._listener, self._drawer, self._hello = listener, drawer, hello
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)
        self.batches: List[int] = []
        """Sizes of the last batches."""

    def serve(self) -> None:
        """Serve until the process is killed."""
        while True:
            self.serve_batch()

    def serve_batch(self) -> None:
        """Wait for requests, draw all that have arrived, and reply."""
        waiting: List[Tuple[Channel, DrawRequest]] = []
        timeout = None
        while True:
            ready = self._selector.select(timeout)
            if not ready:
                break
            timeout = 0  # take what has arrived, then draw
            for key, _ in ready:
                if key.data is None:
                    self._accept()
                else:
                    self._receive(key.fileobj, key.data, waiting)
        if waiting:
            self.batches = [*self.batches[-999:], len(waiting)]
            self._reply(waiting)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            head, descriptors, _, _ = socket.recv_fds(  # type: ignore[attr-defined, unused-ignore]
                connection, MEMORY_HEAD.size, 1
            )
            (size,) = MEMORY_HEAD.unpack(head)
            ring = SharedRing(descriptors[0], size)
            os.close(descriptors[0])
            reading = connection.detach()
            channel = Channel(reading, os.dup(reading), ring)
            channel.send(self._hello)
        except (OSError, struct.error, IndexError, ChannelClosed):
            connection.close()  # a client that died while it connected
            return
        self._selector.register(reading, selectors.EVENT_READ, channel)

    def _receive(self, descriptor: Any, channel: Channel, waiting: List[Any]) -> None:
        """Take one frame of a client; a draw request joins ``waiting``."""
        try:
            header, _, arrays = channel.receive()
            if header["op"] == "assets":
                self._drawer.add_assets(header["assets"], arrays)
                channel.send({"op": "kept"})
            elif self._drawer.has_assets(header["assets"]):
                waiting.append((channel, request_of_frame(header, arrays)))
            else:
                channel.send({"op": "unknown"})
        except (ChannelClosed, FrameError):
            self._selector.unregister(descriptor)
            channel.close()

    def _reply(self, waiting: Sequence[Tuple[Channel, DrawRequest]]) -> None:
        try:
            images = self._drawer.draw([request for _, request in waiting])
        except Exception as error:  # noqa: BLE001  every client of the batch gets it
            sys.stderr.write(traceback.format_exc())
            text = "%s: %s" % (type(error).__name__, str(error)[:1000])
            for channel, _ in waiting:
                _send(channel, {"op": "failed", "text": text}, {})
            return
        for (channel, _), image in zip(waiting, images):
            _send(channel, {"op": "image"}, {"image": image})


def _send(channel: Channel, header: Dict[str, Any], arrays: Dict[str, Any]) -> None:
    """Send a reply; a client that is gone is noticed by the next ``select``."""
    with contextlib.suppress(ChannelClosed):
        channel.send(header, arrays)


def serve_descriptors(words: Sequence[str]) -> None:
    """Serve: ``words`` are the listening socket, the guard's pipe and the device's name."""
    listener = socket.socket(fileno=int(words[0]))
    start_guard(int(words[1]))
    try:
        drawer, device = _warp_drawer(words[2])
    except _Refused as refused:
        hello = {"op": "refused", "text": str(refused), "code": refused.code}
        DrawingServer(listener, _NoDrawer(), hello).serve()
    facts = interpreter_facts(DISTRIBUTIONS)
    DrawingServer(listener, drawer, {"op": "ready", "device": device, "facts": facts}).serve()


class _Refused(Exception):
    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class _NoDrawer:
    """Draws nothing: every client is refused."""

    def add_assets(self, key: str, assets: Dict[str, Any]) -> None:
        """Ignore them."""

    def has_assets(self, key: str) -> bool:
        """Return False."""
        return False

    def draw(self, requests: Sequence[DrawRequest]) -> Sequence[Any]:
        """Return nothing."""
        return []


def _warp_drawer(device: str) -> Tuple[Drawer, str]:
    """Return the drawer and its device's name.

    Raises:
        _Refused: a package is missing, or there is no such device.
    """
    try:
        import warp

        warp.config.quiet = True
        warp.init()
        from proctor_worker.drawing.warp_drawer import WarpDrawer
    except ImportError as error:
        raise _Refused(str(error), NOT_INSTALLED) from None
    if device == "cpu":
        return WarpDrawer("cpu"), "CPU"
    if not warp.is_cuda_available():
        raise _Refused("warp finds no CUDA device", NO_GPU)
    return WarpDrawer(device), str(warp.get_device(device).name)
