"""How the process of a world is started: another interpreter, or a command."""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import proctor_worker
from proctor.errors import UsageError
from proctor.system.redaction import redact_text
from proctor_worker.channel import Channel
from proctor_worker.shared_ring import SharedRing

WORKER_FOLDER = Path(proctor_worker.__file__).resolve().parent
PROCTOR_FOLDER = Path(__file__).resolve().parents[2]
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV")
"""Variables about this interpreter, which the other one must not see."""
_BOOTSTRAP = "exec(input())"
"""Program of the interpreter that a command starts; the line that it reads has the rest."""
_FINDER = """
import importlib.abc, importlib.util, json, sys
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, sources):
        self.sources = sources
    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        is_package = any(other.startswith(name + ".") for other in self.sources)
        return importlib.util.spec_from_loader(name, self, is_package=is_package)
    def get_source(self, name):
        return self.sources[name]
    def exec_module(self, module):
        name = module.__name__
        exec(compile(self.sources[name], "<%s>" % name, "exec"), module.__dict__)
sys.meta_path.insert(0, Finder(json.loads(SOURCES)))
from proctor_worker.server import serve_stdio
serve_stdio()
"""


@dataclass(frozen=True)
class Launch:
    """How to start the process and to make its world. Picklable: every worker starts its own."""

    world: str
    """``module:function`` that makes the world, in the other interpreter."""
    config: dict[str, Any]
    """The argument of that function, as JSON values."""
    python: str | None = None
    """Path of the interpreter."""
    command: str | None = None
    """Command that starts an interpreter; nothing is shared with it but stdin and stdout."""
    needs_proctor: bool = False
    """Whether the world is part of Proctor itself, which needs Python >= 3.11."""
    shared_bytes: int = field(default=0, compare=False)
    """Size of the shared memory; 0: every array goes through the socket."""

    @property
    def flag(self) -> str:
        """The flag that chose the interpreter, for messages."""
        if self.command is not None:
            return f"--env.command={redact_text(self.command)!r}"
        return f"--env.python={self.python}"

    @property
    def origin(self) -> str:
        """The world and its interpreter, for messages about what it returns."""
        return f"{self.world} ({self.flag})"


@dataclass(frozen=True)
class StartedProcess:
    """A started process, the channel to it, and the pipe that keeps it alive."""

    process: subprocess.Popen[bytes]
    channel: Channel
    life: int
    """Writing end of a pipe; the guard kills the process's group when it is closed."""


def start(launch: Launch, stderr: IO[bytes] | None = None) -> StartedProcess:
    """Start the process; its stdout and stderr go to ``stderr``, by default to this process's."""
    guarded, life = os.pipe()
    try:
        if launch.command is not None:
            process, channel = _start_command(launch.command, guarded, stderr)
        else:
            process, channel = _start_python(launch, guarded, stderr)
    except BaseException:
        os.close(life)
        raise
    finally:
        os.close(guarded)
    return StartedProcess(process, channel, life)


def interpreter_path(python: str, flag: str = "--env.python") -> Path:
    """Return the interpreter of ``flag``: a file, or the folder of a virtual environment."""
    path = Path(python).expanduser()
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file():
        raise UsageError(f"{flag}={python}: {path} does not exist", code="env.no-interpreter")
    if not os.access(path, os.X_OK):
        raise UsageError(f"{flag}={python} is not executable", code="env.no-interpreter")
    return path.absolute()


def _start_python(
    launch: Launch, guarded: int, stderr: IO[bytes] | None
) -> tuple[subprocess.Popen[bytes], Channel]:
    assert launch.python is not None
    python = interpreter_path(launch.python)
    ours, theirs = socket.socketpair()
    memory = shared_memory(launch.shared_bytes) if launch.shared_bytes else -1
    environment = isolated_environment()
    if launch.needs_proctor:
        environment["PROCTOR_WORKER_PACKAGES"] = str(PROCTOR_FOLDER)
    words = (theirs.fileno(), memory, launch.shared_bytes, guarded)
    try:
        process = subprocess.Popen(  # noqa: S603  the user's own interpreter
            [str(python), str(WORKER_FOLDER / "__main__.py"), *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=stderr or 2,
            stderr=stderr,
            env=environment,
            pass_fds=[descriptor for descriptor in (words[0], memory, guarded) if descriptor >= 0],
            start_new_session=True,
        )
        ring = SharedRing(memory, launch.shared_bytes) if memory >= 0 else None
    except OSError as error:
        ours.close()
        raise UsageError(
            f"{launch.flag} cannot be started: {error.strerror}", code="env.no-interpreter"
        ) from None
    finally:
        theirs.close()
        if memory >= 0:
            os.close(memory)
    reading = ours.detach()
    return process, Channel(reading, os.dup(reading), ring)


def isolated_environment() -> dict[str, str]:
    """Return the environment variables for another interpreter."""
    return {name: value for name, value in os.environ.items() if name not in _DROPPED}


def shared_memory(size: int) -> int:
    """Return the descriptor of new shared memory."""
    if sys.platform == "linux":
        memory = os.memfd_create("proctor-world", 0)
    else:
        with tempfile.TemporaryFile() as file:
            memory = os.dup(file.fileno())
    os.ftruncate(memory, size)
    return memory


def _start_command(
    command: str, guarded: int, stderr: IO[bytes] | None
) -> tuple[subprocess.Popen[bytes], Channel]:
    words = command_words(command)
    guard = [sys.executable, "-I", "-S", str(WORKER_FOLDER / "guard.py"), str(guarded)]
    process = subprocess.Popen(  # noqa: S603  the user's own command
        [*guard, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        pass_fds=[guarded],
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    reading, writing = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
    process.stdout.close()
    try:
        process.stdin.write(_bundle())
        process.stdin.flush()
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended; the hello is missing then, which is reported
    return process, Channel(reading, writing)


def command_words(command: str) -> list[str]:
    """Return the command's words, with the program of the interpreter that it starts.

    ``ssh`` hands its words to a shell on the other machine, so the program is quoted for it.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(
            f"--env.command: {error} in {redact_text(command)!r}", code="flag.invalid-value"
        ) from None
    if not words or shutil.which(words[0]) is None:
        name = words[0] if words else ""
        raise UsageError(f"--env.command: no program {name!r}", code="env.no-interpreter")
    program = shlex.quote(_BOOTSTRAP) if Path(words[0]).name == "ssh" else _BOOTSTRAP
    return [*words, "-c", program]


def _bundle() -> bytes:
    """Return the sources of ``proctor_worker`` as one line of Python that serves over stdio."""
    sources = {}
    for path in sorted(WORKER_FOLDER.rglob("*.py")):
        parts = path.relative_to(WORKER_FOLDER.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text(encoding="utf-8")
    program = f"SOURCES = {json.dumps(json.dumps(sources))}\n{_FINDER}"
    packed = base64.b64encode(zlib.compress(program.encode(), 9)).decode()
    unpack = f"__import__('zlib').decompress(__import__('base64').b64decode('{packed}')).decode()"
    return f"exec({unpack})\n".encode()


def shared_bytes(sizes: Sequence[int]) -> int:
    """Return the size of the shared memory for arrays of these sizes: room for four of each."""
    needed = 4 * sum(sizes)
    return 0 if needed == 0 else 4096 * (1 + -(-needed // 4096))
