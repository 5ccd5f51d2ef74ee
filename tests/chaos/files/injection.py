"""What may fail, the plan that all processes share, and commands that run under the injector."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos import leftovers

ROOT = Path(__file__).parents[3]
_SOURCE = Path(__file__).with_name("injector.c")
_LONGEST_S, _PAUSED_S = 300.0, 10.0
_PLAN = struct.Struct("7i")
_ONCE, _ONWARD, _HALF_WRITE, _KILL_GROUP, _SET_CLOCK, _PAUSE = 1, 2, 3, 4, 5, 6
_CREATE, _WRITE, _NAME, _SYNC, _SIZE, _REMOVE, _MODE, _READ = (1 << bit for bit in range(8))
_GROWS = _CREATE | _WRITE | _NAME | _SYNC | _SIZE
_CHANGES = _GROWS | _REMOVE | _MODE


_VARYING = re.compile(r"[0-9a-f]{8,}|[0-9]+|(?<=[._])[a-z0-9_]{8}(?=[./]|$)")


@dataclass(frozen=True)
class Fault:
    """A way to fail, and the operations that can fail so."""

    name: str
    action: int
    value: int
    """The error, or the seconds by which the clock jumps."""
    kinds: int
    kills: bool = False
    survived: bool = False
    """Whether the command must go on."""


FAULTS = [
    Fault("ENOSPC once", _ONCE, errno.ENOSPC, _GROWS),
    Fault("ENOSPC from there on", _ONWARD, errno.ENOSPC, _GROWS),
    Fault("EIO", _ONCE, errno.EIO, _CHANGES | _READ),
    Fault("EROFS", _ONWARD, errno.EROFS, _CHANGES & ~_SYNC),
    Fault("half a write", _HALF_WRITE, errno.ENOSPC, _GROWS),
    Fault("kill", _KILL_GROUP, 0, _CHANGES, kills=True),
    Fault("a day back", _SET_CLOCK, -86_400, _CHANGES, survived=True),
    Fault("a day on", _SET_CLOCK, 86_400, _CHANGES, survived=True),
    Fault("paused", _PAUSE, 0, _CHANGES, survived=True),
]


@dataclass(frozen=True)
class Operation:
    """A counted operation on a file."""

    number: int
    call: str
    path: str

    @property
    def group(self) -> str:
        """What operations have in common that differ only in numbers and random names."""
        return f"{self.call} {_VARYING.sub('#', self.path)}"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    said: str
    left: list[str]
    """Processes and shared memory that it left."""
    failed: Operation | None = None
    """The operation that failed."""


def why_impossible() -> str | None:
    """Return why no file operation can be made to fail here, in one line."""
    if not sys.platform.startswith("linux"):
        return "file faults need LD_PRELOAD, which is Linux's"
    if shutil.which("cc") is None:
        return "file faults need a C compiler (cc): apt-get install gcc"
    return None


def compile_injector(folder: Path) -> Path:
    """Compile the injector into ``folder``."""
    library = folder / "injector.so"
    words = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(words, check=True)
    return library


class FaultyDisk:
    """Runs commands in ``home``, a folder whose file operations can fail."""

    def __init__(self, base: Path, library: Path, variables: Mapping[str, str]) -> None:
        self.home = base / "home"
        self.temporary = base / "tmp"
        self._base, self._shm = base, base / "shm"
        self._trace = base / "trace"
        self._shm.mkdir(parents=True)
        self._trace.touch()
        page = base / "page"
        page.write_bytes(bytes(_PLAN.size))
        with page.open("r+b") as file:
            self._plan = mmap.mmap(file.fileno(), _PLAN.size)
        own = {
            "PROCTOR_FAULT_PAGE": str(page),
            "PROCTOR_FAULT_UNDER": str(self.home),
            "PROCTOR_FAULT_TRACE": str(self._trace),
            "LD_PRELOAD": str(library),
            "HOME": str(self.home / "user"),
            "XDG_CACHE_HOME": str(self.home / "user/.cache"),
            "TMPDIR": str(self.temporary),
            "OMP_NUM_THREADS": "1",
        }
        words = [sys.executable, "-m", "tests.chaos.files.server"]
        self._server = subprocess.Popen(
            leftovers.with_own_shared_memory(words, self._shm),
            cwd=ROOT,
            env={**os.environ, **own, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()
        self._plan.close()

    def warm(self, words: list[str]) -> Ended:
        """Run a command without faults; later ones find its modules imported."""
        ended = self._run(words, modules=str(self._base / "modules"))
        assert ended.code == 0, f"{words} ended with {ended.code}: {ended.said}"
        return ended

    def trace(self, words: list[str], fault: Fault) -> tuple[Ended, list[Operation]]:
        """Run a command without faults; return what could fail."""
        with self._armed(fault, 0):
            ended = self._run(words)
        return ended, self._operations()

    def run(self, words: list[str], fault: Fault | None = None, target: int = 0) -> Ended:
        """Run a command; with a fault, let operation ``target`` fail."""
        if fault is None:
            return self._run(words)
        with self._armed(fault, target):
            ended = self._run(words, paused_s=_PAUSED_S if fault.action == _PAUSE else 0)
        fired = _PLAN.unpack(self._plan[:])[-1]
        at = [one for one in self._operations() if one.number == target]
        return Ended(ended.code, ended.said, ended.left, at[0] if fired and at else None)

    @contextlib.contextmanager
    def _armed(self, fault: Fault, target: int) -> Iterator[None]:
        os.truncate(self._trace, 0)
        self._plan[:] = _PLAN.pack(1, 0, target, fault.action, fault.value, fault.kinds, 0)
        try:
            yield
        finally:
            self._plan[:4] = struct.pack("i", 0)

    def _run(self, words: list[str], modules: str = "", paused_s: float = 0) -> Ended:
        output = self._base / "output"
        request = {"words": words, "output": str(output), "folder": str(self.home)}
        request |= {"modules": modules, "limit_s": _LONGEST_S, "paused_s": paused_s}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps(request)}\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        left = [*answer["left"], *leftovers.segments(self._shm)]
        for segment in self._shm.iterdir():
            segment.unlink()
        return Ended(answer["code"], output.read_text(errors="replace"), left)

    def _operations(self) -> list[Operation]:
        lines = self._trace.read_text(errors="replace").splitlines()
        parts = [line.split(" ", 2) for line in lines]
        found = [Operation(int(part[0]), part[1], part[2]) for part in parts if len(part) == 3]
        return sorted(found, key=lambda one: one.number)


def require_injector() -> None:
    """Skip a test where nothing can be injected."""
    reason = why_impossible()
    if reason is not None:
        pytest.skip(reason)
