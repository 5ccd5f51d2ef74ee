"""The channel between engine and worker: whole messages over a pair of sockets.

The engine's end never blocks. A worker that is stopped, or that dies in the middle of a message,
delays only its own slot, which the watchdog handles.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

from proctor.engine.transport.message_encoding import decode, encode

_LENGTH = struct.Struct("!Q")
_READ_BYTES = 2**16


def _framed(message: object) -> bytes:
    content = encode(message)
    return _LENGTH.pack(len(content)) + content


class EngineEnd:
    """The non-blocking end of the engine: it buffers what the socket does not accept yet."""

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._line = line
        self._outgoing = bytearray()
        self._incoming = bytearray()

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self._line.fileno()

    def post(self, message: object) -> None:
        """Send ``message``, or as much as the socket accepts now; ``flush`` sends the rest."""
        self._outgoing += _framed(message)
        self.flush()

    def flush(self) -> None:
        """Send buffered bytes that the socket accepts now; ``collect`` notices a dead worker."""
        try:
            while self._outgoing:
                del self._outgoing[: self._line.send(self._outgoing)]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._outgoing.clear()

    @property
    def waiting(self) -> bool:
        """Whether buffered bytes are left for ``flush``."""
        return bool(self._outgoing)

    def collect(self) -> list[Any]:
        """Return the messages that have arrived completely.

        Raises:
            EOFError: the worker has closed the channel; messages that arrived before are returned
                first.
        """
        ended = self._read()
        messages = self._take_messages()
        if ended and not messages:
            raise EOFError
        return messages

    def _read(self) -> bool:
        """Read the bytes that have arrived; return whether the worker has closed the channel."""
        try:
            while part := self._line.recv(_READ_BYTES):
                self._incoming += part
                if len(part) < _READ_BYTES:  # the socket is empty: spare another system call
                    return False
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    def _take_messages(self) -> list[Any]:
        messages, start = [], 0
        while len(self._incoming) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming, start)
            end = start + _LENGTH.size + length
            if len(self._incoming) < end:
                break
            messages.append(decode(self._incoming[start + _LENGTH.size : end]))
            start = end
        del self._incoming[:start]
        return messages

    def close(self) -> None:
        """Close the socket."""
        self._line.close()


class WorkerEnd:
    """The blocking end of the worker. Picklable while a process is spawned.

    ``spin``, if given, is called before each wait for a message.
    """

    def __init__(self, line: socket.socket, spin: Callable[[], None] | None = None) -> None:
        self._line = line
        self._spin = spin

    def send(self, message: object) -> None:
        """Send ``message`` completely."""
        self._line.sendall(_framed(message))

    def recv(self) -> Any:
        """Wait for the next message.

        Raises:
            EOFError: the engine has closed the channel.
        """
        return decode(self.recv_bytes())

    def recv_bytes(self) -> bytes:
        """Wait for the next message and return it encoded.

        Raises:
            EOFError: the engine has closed the channel.
        """
        if self._spin is not None:
            self._spin()
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(length)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._line.fileno()

    def _read(self, size: int) -> bytes:
        content = self._line.recv(size, socket.MSG_WAITALL)
        while len(content) < size:  # a signal came
            part = self._line.recv(size - len(content), socket.MSG_WAITALL)
            if not part:
                raise EOFError
            content += part
        return content

    def close(self) -> None:
        """Close the socket."""
        self._line.close()


def make_channel() -> tuple[EngineEnd, WorkerEnd]:
    """Return the two ends of a new channel."""
    ours, theirs = socket.socketpair()
    return EngineEnd(ours), WorkerEnd(theirs)
