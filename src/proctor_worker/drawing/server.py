"""Serves drawing requests of all workers over one listening socket.

A connection begins with the descriptor of shared memory, in which its client owns places for
pictures. While a batch is drawn, requests are received; they are the next batch. It is launched
before the device is free, and the pictures of the batch before it are sent while it is drawn.
"""

import contextlib
import mmap
import os
import selectors
import socket
import struct
import sys
import time
import traceback
from collections import deque
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Deque,
    Dict,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

from proctor_worker.channel import Channel
from proctor_worker.distributions import interpreter_facts
from proctor_worker.drawing import statistics
from proctor_worker.drawing.scene import DRAW, DRAWN_AT, SceneLayout, layout_of_frame
from proctor_worker.drawing.statistics import ServerStatistics
from proctor_worker.frames import ChannelClosed, FrameError, encode_frame, encode_header
from proctor_worker.guard import start_guard

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

MEMORY_HEAD = struct.Struct("<QQ")
"""Size of the shared memory and of a place in it, sent with its descriptor."""
DISTRIBUTIONS = ("mujoco", "mujoco-warp", "warp-lang")
NO_GPU, NOT_INSTALLED = "render.no-gpu", "render.not-installed"
_PAUSE_S = 30e-6
"""Pause between two looks at sockets and device while a batch is drawn."""

World = Tuple[int, bytes]
"""Number of a layout, and a request's numbers."""


class Drawing(Protocol):
    """A batch that is being drawn."""

    def is_done(self) -> bool:
        """Return whether ``images`` need not wait."""

    def images(self) -> Sequence[Any]:
        """Wait; return the pictures, uint8 [H, W, 3] each."""


class Drawer(Protocol):
    """What draws: ``WarpDrawer``, or a stand-in of tests."""

    def add_assets(self, key: str, assets: Dict[str, Any]) -> None:
        """Keep a model's meshes, textures and materials under ``key``."""

    def has_assets(self, key: str) -> bool:
        """Return whether layouts with these assets can be added."""

    def add_layout(self, layout: SceneLayout) -> int:
        """Prepare to draw scenes of this layout; return its number.

        It may make other numbers unknown.
        """

    def has_layout(self, number: int) -> bool:
        """Return whether scenes of the layout ``number`` can be drawn."""

    def begin(self, worlds: Sequence[World]) -> Drawing:
        """Begin to draw ``worlds``."""

    def statistics(self) -> Dict[str, Any]:
        """Return what it has prepared, for the log."""


class DrawingServer:
    """Accepts clients, collects their requests, and answers each batch."""

    def __init__(self, listener: socket.socket, drawer: Drawer, hello: Dict[str, Any]) -> None:
        self._listener, self._drawer, self._hello = listener, drawer, hello
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._waiting: List[_Request] = []
        self.statistics = ServerStatistics()

    def serve(self) -> None:
        """Serve until the process is killed."""
        under_way: "Deque[_Batch]" = deque()
        enter = self.statistics.enter
        while True:
            enter(statistics.DRAWING if under_way else statistics.WAITING)
            ready = self._selector.select(0 if under_way else None)
            enter(statistics.RECEIVING)
            for key, _ in ready:
                if key.data is None:
                    self._accept()
                else:
                    self._receive(key.fileobj, key.data)
            done = under_way.popleft() if under_way and under_way[0].is_done() else None
            if self._waiting and self._should_begin(under_way):
                enter(statistics.BEGINNING)
                begun = self._begin()
                if begun is not None:
                    under_way.append(begun)
                if done is None and under_way and under_way[0].is_done():  # on a CPU
                    done = under_way.popleft()
            if done is not None:
                enter(statistics.REPLYING)
                done.reply()
            elif not ready and under_way:
                enter(statistics.DRAWING)
                time.sleep(_PAUSE_S)

    def _should_begin(self, under_way: "Deque[_Batch]") -> bool:
        """Return whether the waiting requests are the next batch.

        One batch may wait for the device while another is drawn, so that the device is not idle
        between them. It should be large: a device draws many pictures as fast as few.
        """
        if not under_way:
            return True
        return len(under_way) == 1 and 2 * len(self._waiting) >= under_way[0].size

    def _begin(self) -> Optional["_Batch"]:
        """Begin to draw the waiting requests."""
        waiting, self._waiting = self._waiting, []
        batch = []
        for request in waiting:
            if self._drawer.has_layout(request.layout):
                batch.append(request)
            else:
                _send(request.client, "unknown", request.place)
        if not batch:
            return None
        self.statistics.count(len(batch))
        try:
            drawing = self._drawer.begin([(request.layout, request.numbers) for request in batch])
        except Exception as error:  # noqa: BLE001  every client of the batch gets it
            _reply_failed(batch, error)
            return None
        return _Batch(batch, drawing)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            head, descriptors, _, _ = socket.recv_fds(  # type: ignore[attr-defined, unused-ignore]
                connection, MEMORY_HEAD.size, 1
            )
            size, place_bytes = MEMORY_HEAD.unpack(head)
            memory = mmap.mmap(descriptors[0], size)
            places = np.frombuffer(memory, np.uint8).reshape(-1, place_bytes)
            os.close(descriptors[0])
            reading = connection.detach()
            channel = Channel(reading, os.dup(reading), spins=False)
            channel.send(self._hello)
        except (OSError, struct.error, IndexError, ValueError, ChannelClosed):
            connection.close()  # a client that died while it connected
            return
        self._selector.register(reading, selectors.EVENT_READ, _Client(channel, places))

    def _receive(self, descriptor: Any, client: "_Client") -> None:
        """Take the frames that a client has sent."""
        try:
            while True:
                self._receive_one(client)
                if not client.channel.has_bytes:
                    return
        except (ChannelClosed, FrameError, struct.error):
            self._selector.unregister(descriptor)
            client.channel.close()
            self._waiting = [request for request in self._waiting if request.client is not client]

    def _receive_one(self, client: "_Client") -> None:
        """Take one frame; a draw request joins those that wait."""
        channel = client.channel
        header, prefix, arrays = channel.receive()
        operation = header["op"]
        if operation == "draw":
            layout, place = DRAW.unpack_from(prefix)
            if place >= len(client.places):
                raise FrameError("a picture outside of the shared memory")
            self._waiting.append(_Request(client, layout, place, prefix[DRAW.size :]))
            return
        before = self.statistics.enter(statistics.PREPARING)
        try:
            if operation == "assets":
                self._drawer.add_assets(header["assets"], arrays)
                channel.send({"op": "kept"})
            elif operation == "statistics":
                channel.send({"op": operation, **self._statistics()})
            elif self._drawer.has_assets(header["assets"]):
                number = self._drawer.add_layout(layout_of_frame(header, arrays))
                channel.send({"op": "scene", "number": number})
            else:
                channel.send({"op": "without-assets"})
        except (ChannelClosed, FrameError):
            raise
        except Exception as error:  # noqa: BLE001  the client gets it
            sys.stderr.write(traceback.format_exc())
            channel.send({"op": "failed", "text": _text(error)})
        self.statistics.enter(before)

    def _statistics(self) -> Dict[str, Any]:
        return {**self.statistics.as_dict(), "drawer": self._drawer.statistics()}


class _Client(NamedTuple):
    channel: Channel
    places: Any
    """Memory for pictures, uint8 [places, bytes]."""


class _Request(NamedTuple):
    client: _Client
    layout: int
    place: int
    numbers: bytes


class _Batch:
    """Requests whose pictures are being drawn."""

    def __init__(self, requests: Sequence[_Request], drawing: Drawing) -> None:
        self._requests, self._drawing = requests, drawing
        self.is_done, self.size = drawing.is_done, len(requests)

    def reply(self) -> None:
        """Wait for the pictures and send them."""
        try:
            images = self._drawing.images()
        except Exception as error:  # noqa: BLE001  every client of the batch gets it
            _reply_failed(self._requests, error)
            return
        for request, image in zip(self._requests, images):
            request.client.places[request.place, : image.size] = image.reshape(-1)
            _send(request.client, "image", request.place)


def _reply_failed(requests: Sequence[_Request], error: Exception) -> None:
    sys.stderr.write(traceback.format_exc())
    for request in requests:
        _send(request.client, "failed", request.place, text=_text(error))


def _text(error: Exception) -> str:
    return "%s: %s" % (type(error).__name__, str(error)[:1000])


def _send(client: _Client, operation: str, place: int, **fields: Any) -> None:
    """Send a reply; a client that is gone is noticed by the next ``select``."""
    with contextlib.suppress(ChannelClosed):
        if fields:
            client.channel.send({"op": operation, **fields}, prefix=DRAWN_AT.pack(place))
        else:
            client.channel.send_encoded(_reply_frame(operation, place))


@lru_cache(maxsize=256)
def _reply_frame(operation: str, place: int) -> bytes:
    return encode_frame(encode_header({"op": operation}), [DRAWN_AT.pack(place)])


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

    def add_layout(self, layout: SceneLayout) -> int:
        """Fail; no client has assets."""
        raise NotImplementedError

    def has_layout(self, number: int) -> bool:
        """Return False."""
        return False

    def begin(self, worlds: Sequence[World]) -> Drawing:
        """Fail; no client has a layout."""
        raise NotImplementedError

    def statistics(self) -> Dict[str, Any]:
        """Return nothing."""
        return {}


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
