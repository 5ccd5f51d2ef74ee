"""Serves drawing requests of all workers over one listening socket.

A connection begins with the descriptor of shared memory for its pictures. Each client has at most
one request under way. All requests that have arrived are the next batch. While a batch is drawn,
the next one is received and begun.
"""

import contextlib
import os
import selectors
import socket
import struct
import sys
import traceback
from typing import Any, Dict, List, Optional, Protocol, Sequence, Tuple

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


class Drawing(Protocol):
    """A batch that is being drawn."""

    def images(self) -> Sequence[Any]:
        """Wait; return the pictures, uint8 [H, W, 3] each."""


class Drawer(Protocol):
    """What draws: ``WarpDrawer``, or a stand-in of tests."""

    def add_assets(self, key: str, assets: Dict[str, Any]) -> None:
        """Keep a model's meshes, textures and materials under ``key``."""

    def has_assets(self, key: str) -> bool:
        """Return whether requests with these assets can be drawn."""

    def begin(self, requests: Sequence[DrawRequest]) -> Drawing:
        """Begin to draw ``requests``."""


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
        under_way: Optional[_Batch] = None
        while True:
            begun = self._begin(self._receive_waiting(must_wait=under_way is None))
            if under_way is not None:
                under_way.reply()
            under_way = begun

    def _receive_waiting(self, *, must_wait: bool) -> List[Tuple[Channel, DrawRequest]]:
        """Return all requests that have arrived; wait for one if ``must_wait``."""
        waiting: List[Tuple[Channel, DrawRequest]] = []
        timeout = None if must_wait else 0
        while True:
            ready = self._selector.select(timeout)
            if not ready:
                return waiting
            timeout = 0
            for key, _ in ready:
                if key.data is None:
                    self._accept()
                else:
                    self._receive(key.fileobj, key.data, waiting)

    def _begin(self, waiting: Sequence[Tuple[Channel, DrawRequest]]) -> Optional["_Batch"]:
        """Begin to draw a batch, if there is one."""
        if not waiting:
            return None
        self.batches = [*self.batches[-999:], len(waiting)]
        channels = [channel for channel, _ in waiting]
        try:
            return _Batch(channels, self._drawer.begin([request for _, request in waiting]))
        except Exception as error:  # noqa: BLE001  every client of the batch gets it
            _reply_failed(channels, error)
            return None

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


class _Batch:
    """Clients that wait for pictures which are being drawn."""

    def __init__(self, channels: Sequence[Channel], drawing: Drawing) -> None:
        self._channels, self._drawing = channels, drawing

    def reply(self) -> None:
        """Wait for the pictures and send them."""
        try:
            images = self._drawing.images()
        except Exception as error:  # noqa: BLE001  every client of the batch gets it
            _reply_failed(self._channels, error)
            return
        for channel, image in zip(self._channels, images):
            _send(channel, {"op": "image"}, {"image": image}, key="image")


def _reply_failed(channels: Sequence[Channel], error: Exception) -> None:
    sys.stderr.write(traceback.format_exc())
    text = "%s: %s" % (type(error).__name__, str(error)[:1000])
    for channel in channels:
        _send(channel, {"op": "failed", "text": text}, {})


def _send(
    channel: Channel, header: Dict[str, Any], arrays: Dict[str, Any], key: Optional[str] = None
) -> None:
    """Send a reply; a client that is gone is noticed by the next ``select``."""
    with contextlib.suppress(ChannelClosed):
        channel.send(header, arrays, key=key)


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

    def begin(self, requests: Sequence[DrawRequest]) -> Drawing:
        """Fail; no client asks."""
        raise NotImplementedError


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
