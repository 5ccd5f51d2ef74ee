"""Where a keyboard teleoperator's keys come from: the terminal, or an input device of Linux.

A terminal works over ssh and needs no X server. It tells presses only, which it repeats while a key
is down. An input device (/dev/input/event*) tells releases too; reading it needs membership in the
group ``input``. Keys have the names of ``control.keys``: "a", "left", "space".
"""

from __future__ import annotations

import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from proctor.errors import DeviceNotConnected
from proctor.robots.base import KeyReader, KeySource

HOLD_S = 0.15
"""A terminal repeats a key at 25 to 30 Hz: after this long without a repeat it is released."""
_EVENT = struct.Struct("@llHHi")
"""``struct input_event`` of linux/input.h: time in two numbers, type, code, value."""
_KEY_EVENT = 1
_RELEASED, _PRESSED, _REPEATED = 0, 1, 2
_MOST_EVENTS = 256
_ROWS = {2: "1234567890-=", 16: "qwertyuiop", 30: "asdfghjkl", 44: "zxcvbnm"}
_CODES = {first + i: key for first, keys in _ROWS.items() for i, key in enumerate(keys)} | {
    1: "escape",
    14: "backspace",
    15: "tab",
    28: "enter",
    29: "ctrl",
    42: "shift",
    54: "right_shift",
    57: "space",
    74: "-",
    78: "+",
    97: "right_ctrl",
    103: "up",
    105: "left",
    106: "right",
    108: "down",
}
"""Codes of keys in linux/input-event-codes.h, which name places on a US keyboard."""


@dataclass(frozen=True)
class Keys:
    """Keys at one moment."""

    pressed: tuple[str, ...] = ()
    """Presses and repeats since the last moment, in order."""
    held: frozenset[str] = frozenset()
    """Keys that are down, or were pressed since the last moment."""


class KeyInput(ABC):
    """A source of keys for one teleoperator."""

    @abstractmethod
    def open(self) -> None:
        """Begin to collect keys."""

    @abstractmethod
    def poll(self) -> Keys:
        """Return the keys of now; never wait."""

    @abstractmethod
    def close(self) -> None:
        """Stop collecting keys."""


class TerminalKeyInput(KeyInput):
    """Keys of the terminal, which the control loop reads too."""

    def __init__(self, source: KeySource | None, now: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._now = now
        self._reader: KeyReader | None = None
        self._last: dict[str, float] = {}

    def open(self) -> None:
        """Begin to collect keys."""
        if self._source is None or not self._source.is_live:
            raise DeviceNotConnected(
                "the keyboard needs a terminal; start the command in one, or give "
                "--teleop.device=/dev/input/eventN",
                code="teleop.no-keys",
            )
        self._reader = self._source.reader()

    def poll(self) -> Keys:
        """Return the keys of now."""
        pressed = () if self._reader is None else tuple(self._reader.poll())
        now = self._now()
        self._last |= dict.fromkeys(pressed, now)
        self._last = {key: at for key, at in self._last.items() if now - at <= HOLD_S}
        return Keys(pressed, frozenset(self._last))

    def close(self) -> None:
        """Stop collecting keys."""
        self._reader = None
        self._last.clear()


class DeviceKeyInput(KeyInput):
    """Keys of a Linux input device."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None
        self._held: set[str] = set()
        self._rest = b""

    def open(self) -> None:
        """Open the device."""
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            raise DeviceNotConnected(
                f"keyboard {self._path}: permission denied; add yourself to the group input",
                code="teleop.no-keys",
            ) from None
        except OSError as bad:
            raise DeviceNotConnected(
                f"keyboard {self._path}: {bad.strerror}", code="teleop.no-keys"
            ) from None

    def poll(self) -> Keys:
        """Read all events that wait."""
        pressed: list[str] = []
        for code, value in self._events():
            key = _CODES.get(code)
            if key is None:
                continue
            if value == _RELEASED:
                self._held.discard(key)
            elif value in (_PRESSED, _REPEATED):
                self._held.add(key)
                pressed.append(key)
        return Keys(tuple(pressed), frozenset(self._held | {*pressed}))

    def close(self) -> None:
        """Close the device."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._held.clear()
        self._rest = b""

    def _events(self) -> list[tuple[int, int]]:
        """Return code and value of the key events that wait."""
        if self._fd is None:
            raise DeviceNotConnected(
                f"keyboard {self._path} is not connected", code="teleop.no-keys"
            )
        try:
            data = self._rest + os.read(self._fd, _EVENT.size * _MOST_EVENTS)
        except BlockingIOError:
            return []
        except OSError as gone:
            raise DeviceNotConnected(
                f"keyboard {self._path} is gone: {gone.strerror}", code="teleop.no-keys"
            ) from None
        whole = len(data) - len(data) % _EVENT.size
        self._rest = data[whole:]
        events = _EVENT.iter_unpack(data[:whole])
        return [(code, value) for _, _, kind, code, value in events if kind == _KEY_EVENT]


def key_input(device: str | None, source: KeySource | None) -> KeyInput:
    """Return the input device called ``device``; None: the terminal that ``source`` reads."""
    return TerminalKeyInput(source) if device is None else DeviceKeyInput(device)
