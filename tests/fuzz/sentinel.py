"""Audit hook that records files written, programs started and code loaded during a case.

Python reports these events to audit hooks (PEP 578), also for libraries, so a case need not know
how an attack might escape.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CANARY = "proctor_fuzz_canary"
"""An existing module that only hostile input names; it must never be imported."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    "os.mkdir": 1, "os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.symlink": 2, "os.link": 2,
    "os.truncate": 1, "os.chmod": 1, "os.chown": 1, "os.utime": 1, "shutil.rmtree": 1,
}  # fmt: skip
"""Audit events that change the disk, with the number of their path arguments."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")
_RUNS_CODE = (
    "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile",
    "ctypes.dlopen", "socket.connect", "socket.getaddrinfo",
)  # fmt: skip
_OWN_LIBRARIES = ("ctypes.dlopen", (None,))
"""Libraries that are loaded already; libc is used to exchange two folders."""
_PROGRAMS = ("uname",)
"""Programs that an evaluation may start, to record the platform in run.json."""


class Sentinel:
    """Records forbidden events while it is active."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._roots: tuple[str, ...] | None = None
        self._looking = False
        sys.addaudithook(self._hear)

    @contextmanager
    def on_duty(self, roots: Sequence[Path]) -> Iterator[None]:
        """Record writes outside ``roots``, started programs and loaded code."""
        self.seen.clear()
        self._roots = tuple(os.path.realpath(root) for root in roots)
        try:
            yield
        finally:
            self._roots = None

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self._roots is None or self._looking:
            return
        self._looking = True  # looking up a path must not look at itself
        try:
            self._judge(event, args)
        finally:
            self._looking = False

    def _judge(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(path, str) and Path(path).name.startswith(f"{CANARY}."):
                self.seen.append(f"imported {path}")
            elif isinstance(path, str | bytes) and flags & _WRITING:
                self._wrote(event, path)
        elif event in _CHANGES:
            for path in args[: _CHANGES[event]]:
                if not isinstance(path, int):  # a file that is open: that was judged
                    self._wrote(event, path)
        elif event == "subprocess.Popen" and args[0] not in _PROGRAMS:
            self.seen.append(f"started {args[0]!r} {args[1]!r}")
        elif event in _RUNS_CODE and (event, args) != _OWN_LIBRARIES:
            self.seen.append(f"{event} {args!r}")

    def _wrote(self, event: str, path: Any) -> None:
        assert self._roots is not None
        entry = Path.cwd() / os.fsdecode(path)
        # Opening follows a link; renaming, removing and making do not.
        follows = event in ("open", "os.truncate")
        real = os.path.realpath(entry if follows else entry.parent)
        real = real if follows else f"{real}{os.sep}{entry.name}"
        inside = any(real == root or real.startswith(root + os.sep) for root in self._roots)
        if not inside and real not in _DEVICES:
            self.seen.append(f"{event} {real}")
