"""Serial ports: pyserial's, and emulated ones under their own names.

``open_port("/dev/ttyACM0")`` opens a pyserial port. A name of a registered prefix, such as "sim" or
"sim:virtual", is opened by the prefix's opener.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from proctor.errors import DeviceNotConnected, MissingExtra

DEFAULT_BAUDRATE = 1_000_000
_BUSY_S = 1.0
"""Patience with a port in use: the torque guard of a killed driver needs it for a moment."""
_RETRY_S = 0.02
PORT_ERRORS: tuple[type[Exception], ...] = (OSError,)
"""Exceptions of a port that is gone. SerialException is an OSError, termios.error is not: pyserial
lets it through when it empties the buffers of an unplugged adapter."""
with contextlib.suppress(ImportError):  # Windows has no termios
    PORT_ERRORS = (OSError, importlib.import_module("termios").error)


class SerialPort(Protocol):
    """The part of pyserial's ``Serial`` that a motor bus uses.

    ``read`` waits for ``size`` bytes at most ``timeout`` seconds. Fewer bytes mean that the time is
    over: an emulated port may return them at once if it knows that no more bytes will come.
    """

    timeout: float | None
    baudrate: int

    @property
    def is_open(self) -> bool:
        """Whether the port is open."""

    @property
    def in_waiting(self) -> int:
        """Count of received bytes that ``read`` would return without waiting."""

    def read(self, size: int = 1) -> bytes:
        """Return ``size`` bytes, or fewer after ``timeout`` seconds."""

    def write(self, data: bytes) -> int | None:
        """Send bytes."""

    def reset_input_buffer(self) -> None:
        """Drop the received bytes."""

    def close(self) -> None:
        """Close the port; a closed one is left alone."""


PortOpener = Callable[[str, int], SerialPort]
"""(port name, baud rate) -> an open port."""

_openers: dict[str, PortOpener] = {}
_LAZY_OPENERS = {"sim": "proctor.robots.emulation"}
"""Prefix -> the module that registers its opener when it is imported."""


def register_port_opener(prefix: str, opener: PortOpener) -> None:
    """Let ``opener`` open the ports named ``prefix`` or ``prefix:…``."""
    _openers[prefix] = opener


def open_port(name: str, baudrate: int = DEFAULT_BAUDRATE) -> SerialPort:
    """Open a serial port."""
    prefix = name.partition(":")[0]
    if prefix in _LAZY_OPENERS and prefix not in _openers:
        importlib.import_module(_LAZY_OPENERS[prefix])
    if prefix in _openers:
        return _openers[prefix](name, baudrate)
    return _open_serial(name, baudrate)


def is_emulated(name: str) -> bool:
    """Return whether a registered opener, not the operating system, opens the port ``name``."""
    prefix = name.partition(":")[0]
    return prefix in _openers or prefix in _LAZY_OPENERS


def _open_serial(name: str, baudrate: int) -> SerialPort:
    try:
        serial: Any = importlib.import_module("serial")
    except ImportError:
        raise MissingExtra("pyserial", "robot") from None
    failures: tuple[type[Exception], ...] = (*PORT_ERRORS, ValueError)
    give_up_at = time.monotonic() + _BUSY_S
    while True:
        try:
            return cast(SerialPort, serial.Serial(name, baudrate, timeout=0.05, exclusive=True))
        except failures as error:
            if _is_busy(error) and time.monotonic() < give_up_at:
                time.sleep(_RETRY_S)
                continue
            message = _cannot_open(name, error)
            raise DeviceNotConnected(message, code="robot.port-missing") from error


def _is_busy(error: Exception) -> bool:
    return getattr(error, "errno", None) in (errno.EAGAIN, errno.EBUSY)


def _cannot_open(name: str, error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number == errno.EACCES:
        reason = "permission denied; add yourself to the group that owns it (often dialout)"
    elif _is_busy(error):
        reason = "another program uses it"
    elif number == errno.ENOENT:
        reason = "there is no such port"
    else:
        reason = str(error)
    return f"cannot open port {name!r}: {reason}; run: proctor find-port"
