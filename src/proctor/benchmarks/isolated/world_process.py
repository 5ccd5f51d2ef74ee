"""The process of a world in another interpreter, as Proctor's side sees it.

If the process dies, a worker process dies the same way, so that the engine's rules for crashes
apply unchanged: retries, diverged episodes, out of memory.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache
from typing import IO, Any, NoReturn

from proctor.benchmarks.guarded_sim import in_worker_process, proctor_code
from proctor.benchmarks.isolated.launch import Launch, StartedProcess, start
from proctor.errors import PluginError, UsageError, WorkerError, summarize_traceback
from proctor.features import Array
from proctor_worker import PROTOCOL
from proctor_worker.frames import ChannelClosed, FrameError

_MACHINES = {"MemoryError": MemoryError, "OSError": OSError, "ImportError": ImportError}
_MOST_BEFORE_HELLO = 2**20
_END_S = 5.0
OUR_PYTHON = (3, 11)
"""Oldest Python that Proctor itself runs in."""
_LIMIT_S = 300
_WAIT_S = 0.1
_SHELL_SIGNALS = 128
"""Shells, docker and ssh report a program that was killed by signal N as exit code 128 + N."""

Reply = tuple[dict[str, Any], bytes, dict[str, Array]]


class WorldProcess:
    """A started process with its world: sends requests and returns replies."""

    def __init__(
        self,
        launch: Launch,
        environment: Mapping[str, str],
        stderr: IO[bytes] | None = None,
        limit_s: float | None = None,
    ) -> None:
        self._launch = launch
        self._started = start(launch, stderr)
        self._finalizer = weakref.finalize(self, _end, self._started)
        self._timed_out = False
        if limit_s is not None:
            timer = threading.Timer(limit_s, self._kill_late)
            timer.daemon = True
            timer.start()
        hello = self._hello()
        if hello["op"] == "refused":
            self.close()
            raise UsageError(
                f"{launch.flag}: {hello['text']}; proctor_worker needs numpy there",
                code=hello["code"],
            )
        if hello.get("protocol") != PROTOCOL:
            self.close()
            raise UsageError(
                f"{launch.flag} speaks another version of the protocol of worlds",
                code="env.interpreter-failed",
            )
        version: str = hello["python"]
        if launch.needs_proctor and minor_version(version) < OUR_PYTHON:
            self.close()
            raise UsageError(
                f"{launch.flag} is Python {version}: Proctor's own benchmarks need 3.11; older "
                "interpreters run gymnasium environments (--env.type=gym) and worlds of their own",
                code="env.interpreter-too-old",
            )
        self.request(
            "make", world=launch.world, config=launch.config, environment=dict(environment)
        )

    def request(self, op: str, **fields: Any) -> Reply:
        """Send a request and return its reply.

        Raises:
            UsageError: the world refused it.
            WorkerError: an error of the adapter, or the process ended.
            Exception: the world's own error.
        """
        self.send({"op": op, **fields})
        return self.receive()

    def send(
        self,
        fields: Mapping[str, Any],
        arrays: Mapping[str, Array] | None = None,
        key: Hashable = None,
    ) -> None:
        """Send a frame; a dead process is noticed by the next ``receive``."""
        with contextlib.suppress(ChannelClosed):
            self._started.channel.send(fields, arrays, key=key)

    @property
    def origin(self) -> str:
        """The world and its interpreter, for messages about what it returns."""
        return self._launch.origin

    @property
    def steps_begun(self) -> int:
        """Steps that the world has begun; 0 without shared memory."""
        ring = self._started.channel.ring
        return 0 if ring is None else int(ring.steps_begun[0])

    def receive(self, while_waiting: Callable[[], None] = lambda: None) -> Reply:
        """Return the next reply.

        ``while_waiting`` is called from time to time, and before the process's end is reported.
        """
        channel = self._started.channel
        try:
            while not channel.is_ready(_WAIT_S):
                while_waiting()
            reply = channel.receive()
        except ChannelClosed:
            while_waiting()
            self._die()
        except FrameError as error:
            with proctor_code():
                self.close()
                raise WorkerError(f"{self._launch.flag} sent {error}") from None
        header = reply[0]
        if header["op"] == "raised":
            _raise(header)
        if header["op"] == "refused":
            raise PluginError(f"{self._launch.flag}: {header['text']}", code=header["code"])
        return reply

    def close(self) -> None:
        """End the process and everything that it started."""
        self._finalizer()

    @property
    def is_closed(self) -> bool:
        """Whether the process has been ended."""
        return not self._finalizer.alive

    def _hello(self) -> dict[str, Any]:
        channel = self._started.channel
        try:
            if self._launch.command is not None:
                channel.skip_to_frame(_MOST_BEFORE_HELLO)
            return channel.receive()[0]
        except (ChannelClosed, FrameError) as error:
            code = self._exit_code()
            self.close()
            how = f"ended with code {code}" if code is not None else f"sent {error}"
            raise UsageError(
                f"{self._launch.flag} {how} before it answered; it must be Python 3.8 or newer",
                code="env.interpreter-failed",
            ) from None

    def _exit_code(self) -> int | None:
        """Return the exit code of the process, negative for a signal; None if it still runs."""
        try:
            code = self._started.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return None
        if self._launch.command is not None and code - _SHELL_SIGNALS in _signal_numbers():
            return _SHELL_SIGNALS - code
        return code

    def _kill_late(self) -> None:
        """Kill the process after its time limit; the thread that waits for it sees its end."""
        if not self.is_closed:
            self._timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._started.process.pid, signal.SIGKILL)

    def _die(self) -> NoReturn:
        """End as the process ended: in a worker by the same signal, elsewhere with an error."""
        code = self._exit_code()
        self.close()
        if self._timed_out:
            raise UsageError(
                f"{self._launch.flag}: the world did not answer within {_LIMIT_S} s",
                code="env.timeout",
            )
        if in_worker_process() and code is not None:
            if code >= 0:
                os._exit(code)
            faulthandler.disable()
            signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
            os.kill(os.getpid(), -code)
        if code is None:
            raise WorkerError(f"{self._launch.flag} closed the connection")
        if code >= 0:
            raise RuntimeError(f"the simulator's process ended (exit code {code})")
        died = f"the simulator's process was killed by {signal.Signals(-code).name}"
        raise OSError(died) if -code in (signal.SIGKILL, signal.SIGTERM) else RuntimeError(died)


def minor_version(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _end(started: StartedProcess) -> None:
    """Close the channel and the pipe of life, kill the process's group, and wait."""
    os.close(started.life)
    started.channel.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(started.process.pid, signal.SIGKILL)
    started.process.wait()


@cache
def _signal_numbers() -> frozenset[int]:
    return frozenset(int(number) for number in signal.valid_signals())


def _raise(header: Mapping[str, Any]) -> NoReturn:
    """Raise the exception of the other process, with its traceback in ``foreign_traceback``."""
    if header["adapter"]:
        with proctor_code():
            error: Exception = WorkerError(f"{header['type']}: {header['text']}")
            error.foreign_traceback = header["traceback"]  # type: ignore[attr-defined]
            raise error
    base = next((_MACHINES[name] for name in header["lineage"] if name in _MACHINES), Exception)
    error = _error_class(header["module"], header["type"], base)(header["text"])
    error.foreign_traceback = header["traceback"]  # type: ignore[attr-defined]
    raise error


@cache
def _error_class(module: str, name: str, base: type[Exception]) -> type[Exception]:
    """Return a class that prints as the other process's exception does."""
    return type(name, (base,), {"__module__": module})


@contextlib.contextmanager
def one_shot(launch: Launch, environment: Mapping[str, str]) -> Iterator[WorldProcess]:
    """Start a world's process for a few requests, in the parent, before anything runs."""
    with tempfile.TemporaryFile() as log:
        process: WorldProcess | None = None
        try:
            process = WorldProcess(launch, environment, stderr=log, limit_s=_LIMIT_S)
            yield process
        except UsageError as error:
            printed = _last_line(log) if error.code == "env.interpreter-failed" else ""
            raise UsageError(f"{error}{printed}", code=error.code) from None
        except Exception as error:
            trace = getattr(error, "foreign_traceback", None)
            text = f"{error}{_last_line(log)}" if trace is None else summarize_traceback(trace)
            raise UsageError(f"{launch.flag}: {text}", code="env.cannot-open") from error
        finally:
            if process is not None:
                process.close()


def _last_line(log: IO[bytes]) -> str:
    """Return the end of what the process printed, in brackets."""
    log.seek(0)
    text = log.read()[-20_000:].decode("utf-8", "replace").strip()
    return f" ({summarize_traceback(text)})" if text else ""
