"""Find leftovers of a run: processes, shared memory, a held lock, temporary files."""

from __future__ import annotations

import fcntl
import functools
import subprocess
import time
from pathlib import Path

import psutil

from proctor.system.locks import CLAIM_FILE, LOCK_FILE

MARK = "PROCTOR_CHAOS"
"""An environment variable that every process of a trial inherits, orphans too."""
_GRACE_S = 60.0


def processes_of(mark: str) -> list[psutil.Process]:
    """Find every living process that carries ``mark``."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in psutil.pids():
        try:
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(psutil.Process(pid))
        except (OSError, psutil.NoSuchProcess):
            continue  # it has just ended
    return found


def orphans(mark: str, grace_s: float = _GRACE_S) -> list[str]:
    """Return the processes that are alive after ``grace_s``, and kill them."""
    deadline = time.monotonic() + grace_s
    while (left := processes_of(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    names = []
    for process in left:
        try:
            names.append(f"process {process.pid} ({process.status()})")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return names


@functools.cache
def can_have_own_shared_memory() -> bool:
    """Return whether a trial can have a private /dev/shm."""
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return tried.returncode == 0


def with_own_shared_memory(command: list[str], folder: Path) -> list[str]:
    """Return ``command`` with ``folder`` as its /dev/shm."""
    if not can_have_own_shared_memory():
        return command
    mount = 'mount --bind "$0" /dev/shm && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, str(folder), *command]


def segments(folder: Path) -> list[str]:
    """Return the shared memory segments that are left."""
    return [f"shared memory {path.name}" for path in folder.iterdir()]


def held_lock(folder: Path) -> list[str]:
    """Return whether the folder's lock is still held; the lock file itself stays."""
    if (folder / CLAIM_FILE).exists():
        return [f"claim {folder / CLAIM_FILE}"]
    path = folder / LOCK_FILE
    if not path.exists():
        return []
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return [f"lock {path}"]
    return []


def temporary_files(folder: Path, temporary: Path) -> list[str]:
    """Return unfinished files of the run folder and all files of the temporary folder."""
    unfinished = [path for path in folder.rglob("*") if path.suffix in (".part", ".tmp")]
    return [f"file {path}" for path in [*unfinished, *temporary.iterdir()]]
