"""Disturbances of a running evaluation from outside."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from proctor.runs.folder import RUN_FILE
from proctor.runs.journal import JOURNAL_FILE
from proctor.runs.sessions import SESSIONS_FILE
from tests.chaos.scenario import WATCHDOG_S, Attack, Damage, Moment
from tests.processes import children_of

FILLER = "filler"
_CROWD = 300
_DISK_MB = 24  # a run is refused where less than 16 MB are free


@dataclass(frozen=True)
class Target:
    """A session of ``proctor eval`` and its folder."""

    process: subprocess.Popen[bytes]
    folder: Path
    pick: Callable[[list[psutil.Process]], psutil.Process]
    to_group: bool
    start_second: Callable[[], int]
    """Starts another run in the same folder, waits for it and returns its exit code."""

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the parent, or to its whole process group as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if self.to_group else os.kill)(self.process.pid, signum)

    def fork_server(self) -> psutil.Process | None:
        servers = children_of(self.process.pid, "forkserver")
        return servers[0] if servers else None

    def workers(self) -> list[psutil.Process]:
        server = self.fork_server()
        return [] if server is None else server.children()


def episodes_in(folder: Path) -> int:
    """Count the lines of the journal."""
    path = folder / JOURNAL_FILE
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(moment: Moment, target: Target, done_before: int) -> None:
    """Wait until the attack is due, or the run is over."""
    deadline = time.monotonic() + 60
    while target.alive and time.monotonic() < deadline:
        begun = not moment.begun or (target.folder / RUN_FILE).exists()
        if begun and episodes_in(target.folder) >= done_before + moment.episodes:
            break
        time.sleep(0.002)
    time.sleep(moment.delay_s)


def strike(attack: Attack, target: Target) -> bool:
    """Carry out ``attack``; return False if its target had already ended."""
    if not target.alive:
        return False
    try:
        return _ATTACKS[attack](target)
    except psutil.NoSuchProcess:
        return False


def _kill_worker(target: Target) -> bool:
    workers = target.workers()
    if workers:
        target.pick(workers).kill()
    return bool(workers)


def _stop_worker(target: Target) -> bool:
    """Stop a worker that is running an episode.

    A worker that is starting has a minute before it counts as hung.
    """
    if episodes_in(target.folder) == 0:
        return False
    workers = [worker for worker in target.workers() if time.time() - worker.create_time() > 0.5]
    if workers:
        target.pick(workers).suspend()
    return bool(workers)


def _kill_parent(target: Target) -> bool:
    target.process.kill()
    return True


def _stop_worker_kill_parent(target: Target) -> bool:
    workers = target.workers()
    if workers:
        target.pick(workers).suspend()
    target.process.kill()
    return bool(workers)


def _kill_fork_server(target: Target) -> bool:
    server = target.fork_server()
    if server is not None:
        server.kill()
    return server is not None


def _interrupt(target: Target) -> bool:
    target.signal(signal.SIGINT)
    return True


def _interrupt_twice(target: Target) -> bool:
    target.signal(signal.SIGINT)
    time.sleep(0.03)
    target.signal(signal.SIGINT)
    return True


def _terminate(target: Target) -> bool:
    target.signal(signal.SIGTERM)
    return True


def _block_session_log(target: Target) -> bool:
    """Put a folder in place of the session log, so that closing its callback fails."""
    path = target.folder / SESSIONS_FILE
    if not target.folder.exists():
        return False
    path.unlink(missing_ok=True)
    path.mkdir(exist_ok=True)
    return True


def _hang_up(target: Target) -> bool:
    """Send SIGHUP twice, as the kernel and the shell do."""
    target.signal(signal.SIGHUP)
    time.sleep(0.03)
    target.signal(signal.SIGHUP)
    return True


def _close_pipe(target: Target) -> bool:
    assert target.process.stdout is not None
    target.process.stdout.close()
    return True


def _crowd(target: Target) -> bool:
    """Open more connections than the server allows, and keep them until the run is over."""
    ports = [
        connection.laddr.port
        for child in psutil.Process(target.process.pid).children()
        for connection in child.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    with contextlib.ExitStack() as crowd:
        for port in ports * _CROWD:
            with contextlib.suppress(ConnectionError):  # the run is over, and so is its server
                crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        if ports:
            with contextlib.suppress(subprocess.TimeoutExpired):
                target.process.wait(60)
    return bool(ports)


def _suspend(target: Target) -> bool:
    """Ctrl-Z for longer than the watchdog's timeout, then fg; the parent continues first."""
    os.killpg(target.process.pid, signal.SIGSTOP)
    time.sleep(WATCHDOG_S + 0.7)
    target.process.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    os.killpg(target.process.pid, signal.SIGCONT)
    return True


def _fill_disk(target: Target) -> bool:
    """Fill the small disk; without one, limit the file size."""
    disk = target.folder.parent
    if not disk.is_mount():
        size = max((path.stat().st_size for path in target.folder.glob("*.jsonl")), default=0)
        limit = (size + 100, resource.RLIM_INFINITY)
        resource.prlimit(target.process.pid, resource.RLIMIT_FSIZE, limit)
        return True
    with contextlib.suppress(OSError), (disk / FILLER).open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return True


def _shrink_memory(target: Target) -> bool:
    """Truncate the shared memory under all processes that map it; it has no name to remove."""
    for path in Path(f"/proc/{target.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "proctor-arena" not in str(path.readlink()):
                continue
            with path.open("r+b") as file:
                with contextlib.suppress(PermissionError):  # it is sealed
                    os.ftruncate(file.fileno(), 0)
                return True
    return False


def _second_run(target: Target) -> bool:
    code = target.start_second()
    if target.alive and code != 2:
        raise AssertionError(f"a second run in the folder ended with {code} beside the first")
    return True


_ATTACKS: dict[Attack, Callable[[Target], bool]] = {
    Attack.KILL_WORKER: _kill_worker,
    Attack.STOP_WORKER: _stop_worker,
    Attack.KILL_PARENT: _kill_parent,
    Attack.STOP_WORKER_KILL_PARENT: _stop_worker_kill_parent,
    Attack.KILL_FORK_SERVER: _kill_fork_server,
    Attack.INTERRUPT: _interrupt,
    Attack.INTERRUPT_TWICE: _interrupt_twice,
    Attack.TERMINATE: _terminate,
    Attack.HANG_UP: _hang_up,
    Attack.CLOSE_PIPE: _close_pipe,
    Attack.CROWD: _crowd,
    Attack.BLOCK_SESSION_LOG: _block_session_log,
    Attack.SUSPEND: _suspend,
    Attack.FILL_DISK: _fill_disk,
    Attack.SHRINK_MEMORY: _shrink_memory,
    Attack.SECOND_RUN: _second_run,
}


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """Mount a small disk if that is allowed; otherwise the attack limits the file size."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "proctor-chaos", str(path)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def damage_journal(damage: Damage, folder: Path, cut: float) -> bool:
    """Damage the last line as a power cut does; return False if there is none."""
    path = folder / JOURNAL_FILE
    content = path.read_bytes() if path.exists() else b""
    if not content.endswith(b"\n"):
        return False
    start = content.rfind(b"\n", 0, -1) + 1
    before, last = content[:start], content[start:]
    kept = last[: 1 + int(cut * (len(last) - 2))]
    lost = len(last) - len(kept)
    left = {
        Damage.CUT: before + kept,
        Damage.NO_NEWLINE: content[:-1],
        Damage.ZEROS: before + kept + bytes(lost),
        Damage.ZERO_LINE: before + bytes(len(last) - 1) + b"\n",
        Damage.HALF_LINE: content + kept,
    }
    path.write_bytes(left[damage])
    return True
