"""Runs commands in forks of a process that has imported them: python -m tests.chaos.files.server

The injector is preloaded, so it counts what the forks do. Each line of stdin is a request, each
line of stdout its answer, in JSON. Processes that a command leaves become children of this one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 15.0
HUNG = -1000
RECIPES = "PROCTOR_CHAOS_RECIPES"
"""An environment variable: the folder of the recipes that ``benchmarks install`` knows."""


def main() -> None:
    """Answer requests until stdin ends."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError("prctl failed")
    if RECIPES in os.environ:
        from proctor.benchmarks.recipes import catalog

        catalog.RECIPES = Path(os.environ[RECIPES])
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(request)
        code = _wait(pid, request["limit_s"], request["paused_s"])
        print(json.dumps({"code": code, "left": _left()}), flush=True)
        if request["modules"]:
            _import(Path(request["modules"]))


def _run(request: dict[str, Any]) -> None:
    """Become the command."""
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(request["folder"])
    from proctor.cli import main as proctor

    code = proctor(request["words"])
    if request["modules"]:
        Path(request["modules"]).write_text("\n".join(sys.modules))
    sys.exit(code)


def _wait(pid: int, limit_s: float, paused_s: float) -> int:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
        if paused_s:
            _continue_after(paused_s, pid)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return HUNG


def _continue_after(paused_s: float, pid: int) -> None:
    """Continue the processes that have stopped themselves."""
    stopped = [one for one in _children(pid) if one.status() == psutil.STATUS_STOPPED]
    if stopped:
        time.sleep(paused_s)
    for process in stopped:
        process.resume()


def _left() -> list[str]:
    """Wait for the processes that the command left, and kill those that stay."""
    deadline = time.monotonic() + _GRACE_S
    while left := _children():
        if time.monotonic() > deadline:
            return [_end(process) for process in left]
        time.sleep(0.01)
    return []


def _children(awaited: int = 0) -> list[psutil.Process]:
    """Return the living children; ``awaited`` is reaped elsewhere."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE and process.pid != awaited:
                os.waitpid(process.pid, os.WNOHANG)
            else:
                found.append(process)
    return found


def _end(process: psutil.Process) -> str:
    words = "a process that has just ended"
    with contextlib.suppress(psutil.NoSuchProcess):
        words = f"process {' '.join(process.cmdline())[:150]} ({process.status()})"
        process.kill()
    return words


def _import(listed: Path) -> None:
    """Import what a command has imported, for the forks to come."""
    for name in listed.read_text().split("\n"):
        # Some names are attributes that look like modules (torch.ops).
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a fork shares these objects for longer


if __name__ == "__main__":
    main()
