"""Keys of the controlling terminal, for control loops.

A key is a name ("right", "escape", "space", "tab", "enter", "backspace") or a lower-case character.
Keys with a meaning in every control loop:

    key          meaning (``ControlKey``)
    right, n     end the episode, and keep it
    left, r      record the episode again
    escape, q    end the session
    backspace    emergency stop: switch every motor off at once

Other keys belong to one loop: space, tab, enter, s and h to strategies of ``proctor rollout``, and
digits and letters to the verdicts of ``proctor eval``.

``KeyHub`` hands every key to all its readers; ``TerminalKeys`` is a hub that reads a terminal.
Without a terminal there are no keys. Tests press keys with ``KeyHub.press``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import termios
import threading
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any

ESCAPE_S = 0.02
"""A terminal sends the bytes of an arrow key at once: after this time a lone Esc is the key Esc."""
_POLL_S = 0.1
_LONGEST = 32
_NAMES = {
    0x0A: "enter",
    0x0D: "enter",
    0x09: "tab",
    0x20: "space",
    0x08: "backspace",
    0x7F: "backspace",
}
_ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
_ESC = 0x1B


class ControlKey(Enum):
    """Meanings of keys in every control loop; the values are the keys."""

    END_EPISODE = ("right", "n")
    RERECORD = ("left", "r")
    STOP = ("escape", "q")
    EMERGENCY_STOP = ("backspace",)

    def __contains__(self, key: object) -> bool:
        return key in self.value


class KeyReader:
    """One reader of a hub: it gets every key once."""

    def __init__(self) -> None:
        self._keys: deque[str] = deque()

    def poll(self) -> list[str]:
        """Return the keys pressed since the last call; never wait."""
        keys = []
        while self._keys:
            keys.append(self._keys.popleft())
        return keys

    def add(self, key: str) -> None:
        """Note a key; the hub calls this, perhaps from its own thread."""
        self._keys.append(key)


class KeyHub:
    """Hands keys to readers; without a source of its own no key is ever pressed."""

    is_live = False
    """Whether a person can press keys now."""

    def __init__(self) -> None:
        self._readers: list[KeyReader] = []

    @property
    def has_terminal(self) -> bool:
        """Whether there is a terminal to read."""
        return False

    def reader(self) -> KeyReader:
        """Return a new reader, which gets all keys from now on."""
        made = KeyReader()
        self.attach(made)
        return made

    def attach(self, reader: KeyReader) -> None:
        """Hand all keys from now on to ``reader`` too."""
        self._readers.append(reader)

    def press(self, key: str) -> None:
        """Hand a key to all readers."""
        for reader in tuple(self._readers):
            reader.add(key)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context in which a person can type lines."""
        yield

    def __enter__(self) -> KeyHub:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the source."""


class KeyParser:
    """Turns bytes of a terminal into keys."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def is_waiting(self) -> bool:
        """Whether an escape sequence has begun and is not complete."""
        return bool(self._held)

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the keys in ``data``, and in bytes held back from earlier calls."""
        self._held += data
        while self._held:
            size, key = self._next()
            if size == 0:
                return
            self._held = self._held[size:]
            if key:
                yield key

    def flush(self) -> Iterator[str]:
        """Yield Esc if only its byte came; drop any other incomplete sequence."""
        held, self._held = self._held, b""
        if held == b"\x1b":
            yield "escape"

    def _next(self) -> tuple[int, str]:
        """Return the length of the first key's bytes, 0 if incomplete, and its name or ""."""
        held, first = self._held, self._held[0]
        if first != _ESC:
            name = _NAMES.get(first, chr(first).lower() if 0x20 < first < 0x7F else "")
            return 1, name
        if len(held) == 1:
            return 0, ""
        if held[1] == _ESC:
            return 1, "escape"
        if held[1] not in b"[O":
            return 2, ""  # Alt with another key
        for place, byte in enumerate(held[2:_LONGEST], start=2):
            if 0x40 <= byte <= 0x7E:
                return place + 1, _ARROWS.get(chr(byte), "")
        return (len(held), "") if len(held) >= _LONGEST else (0, "")


class TerminalKeys(KeyHub):
    """Keys of a terminal, read by a thread inside a ``with`` block.

    The terminal shows no typed characters meanwhile. Its settings are restored at the end, at the
    interpreter's exit and while the process is suspended (Ctrl-Z). A process in the background gets
    no keys.
    """

    def __init__(self, fd: int | None = None) -> None:
        """Read from terminal ``fd``; None: from the controlling terminal, if there is one."""
        super().__init__()
        self._given = fd
        self._fd: int | None = None
        self._settings: list[Any] | None = None
        self._ended = threading.Event()
        self._is_paused = False
        self._is_suspended = False
        self._is_listening = False
        self._changing = threading.RLock()
        """Held while the terminal's settings change; a signal handler may interrupt its holder."""
        self._thread: threading.Thread | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def has_terminal(self) -> bool:
        """Whether there is a terminal to read; known before the ``with`` block."""
        if self._given is not None or self._fd is not None:
            return True
        terminal = _controlling_terminal()
        if terminal is not None:
            os.close(terminal)
        return terminal is not None

    def __enter__(self) -> TerminalKeys:
        self._fd = self._given if self._given is not None else _controlling_terminal()
        if self._fd is None:
            return self
        self._settings = termios.tcgetattr(self._fd)
        self._handle_suspension()
        atexit.register(self._restore)
        self._listen()
        self.is_live = True
        self._thread = threading.Thread(target=self._read, name="keys", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is None or self._thread is None:
            return
        self.is_live = False
        self._ended.set()
        self._thread.join()
        self._restore()
        atexit.unregister(self._restore)
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        if self._given is None:
            os.close(self._fd)
        self._fd = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context in which the terminal edits and shows lines, and no keys are read."""
        self._is_paused = True
        self._restore()
        try:
            yield
        finally:
            self._is_paused = False
            self._listen()

    def _listen(self) -> None:
        """Let the terminal hand over every key at once, unseen; Ctrl-C stays a signal."""
        with self._changing:
            if self._fd is None or self._settings is None or not self._may_listen():
                return
            changed = list(self._settings)
            changed[3] &= ~(termios.ICANON | termios.ECHO)
            changed[6] = list(changed[6])
            changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._fd, termios.TCSADRAIN, changed)
            self._is_listening = True

    def _restore(self) -> None:
        with self._changing:
            self._is_listening = False
            if self._fd is not None and self._settings is not None and self._is_foreground():
                with contextlib.suppress(termios.error):  # the terminal is gone
                    termios.tcsetattr(self._fd, termios.TCSADRAIN, self._settings)

    def _may_listen(self) -> bool:
        return not (self._is_paused or self._is_suspended) and self._is_foreground()

    def _is_foreground(self) -> bool:
        """Whether this process may change the terminal without being stopped by the kernel."""
        assert self._fd is not None
        try:
            return self._given is not None or os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False

    def _handle_suspension(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for signum, handler in (
            (signal.SIGTSTP, self._on_suspend),
            (signal.SIGCONT, self._on_continue),
        ):
            self._before[signum] = signal.signal(signum, handler)

    def _on_suspend(self, signum: int, frame: Any) -> None:
        self._is_suspended = True
        self._restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)  # the process stops in here
        self._on_continue(signum, frame)  # without a shell the kernel does not stop it

    def _on_continue(self, signum: int, frame: Any) -> None:
        signal.signal(signal.SIGTSTP, self._on_suspend)
        self._is_suspended = False
        self._listen()

    def _read(self) -> None:
        """Read keys until the block ends or the terminal is gone."""
        parser = KeyParser()
        assert self._fd is not None
        while not self._ended.is_set():
            if not self._may_listen():
                self._ended.wait(_POLL_S)
                continue
            try:
                if not self._is_listening:  # it was started in the background
                    self._listen()
                ready, _, _ = select.select(
                    [self._fd], [], [], ESCAPE_S if parser.is_waiting else _POLL_S
                )
                data = self._read_now() if ready else None
            except (OSError, termios.error):
                return
            if data == b"":
                return  # hung up
            for key in parser.feed(data) if data else parser.flush():
                self.press(key)

    def _read_now(self) -> bytes | None:
        """Return what was typed; None if a line is being typed, or was and is read already.

        A read without that check would wait for the next key, and the end of the block for it.
        """
        assert self._fd is not None
        with self._changing:  # a pause begins before it or after it
            if self._is_paused or not select.select([self._fd], [], [], 0)[0]:
                return None
            return os.read(self._fd, 1024)


def _controlling_terminal() -> int | None:
    """Open the controlling terminal; None if there is none or the process is in the background."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
