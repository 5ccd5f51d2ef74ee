"""File systems without locks or fsync, or on which these fail."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proctor.errors import FolderInUse, RunFolderError
from proctor.evaluation.run import Evaluation
from proctor.runs.folder import RunFolder
from proctor.runs.journal import read_journal
from proctor.system.locks import CLAIM_FILE, acquire_lock, is_locked, try_lock
from tests.refusals import refuses
from tests.unit.commands.test_shell import QUICK_RUN, proctor_where_nothing_locks


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, how: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


@contextlib.contextmanager
def limited_file_size(limit: int) -> Iterator[None]:
    """Let every write past ``limit`` bytes fail, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def ended_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.usefixtures("no_locks")
def test_a_run_needs_no_locks_and_leaves_no_claim(run: Callable[..., Evaluation]) -> None:
    evaluation = run()
    assert evaluation.complete
    assert not (evaluation.path / CLAIM_FILE).exists()
    assert run(resume=True, output_dir=str(evaluation.path)).complete


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_second_process_is_kept_out_too(tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked():
        owner = f"process {os.getpid()} of {socket.gethostname()}"
        with refuses(FolderInUse, "run.in-use") as refused:
            acquire_lock(tmp_path)
        assert owner in str(refused.value)
        assert CLAIM_FILE in str(refused.value)
        assert (tmp_path / CLAIM_FILE).exists()
    with RunFolder(tmp_path).locked():
        pass


@pytest.mark.usefixtures("no_locks")
def test_what_a_killed_process_claimed_is_free(tmp_path: Path) -> None:
    (tmp_path / CLAIM_FILE).write_text(f"{ended_process()} {socket.gethostname()}\n")
    acquire_lock(tmp_path).release()
    (tmp_path / CLAIM_FILE).write_text(f"{os.getpid()} {socket.gethostname()}\n")
    acquire_lock(tmp_path).release()  # an earlier process had our number, as in containers
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.usefixtures("no_locks")
def test_a_page_is_told_who_works_in_a_folder_without_locks(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    lock = acquire_lock(tmp_path)
    assert is_locked(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)
    (tmp_path / CLAIM_FILE).write_text(f"{ended_process()} {socket.gethostname()}\n")
    assert not is_locked(tmp_path)
    (tmp_path / CLAIM_FILE).write_text(f"{ended_process()} another-machine\n")
    assert is_locked(tmp_path)


def test_asking_whether_a_folder_is_in_use_leaves_no_trace(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []
    lock = acquire_lock(tmp_path)
    assert is_locked(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)


def test_a_run_that_starts_while_a_page_asks_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    asked = try_lock(tmp_path / ".lock", shared=True)  # as a page has it, for an instant
    assert asked is not None
    threading.Timer(0.01, asked.release).start()
    acquire_lock(tmp_path).release()


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize(
    "said", ["", "x", "1 2 3", "-1 HOST", "0 HOST", "9" * 40 + " HOST", "\xff"]
)
def test_a_claim_that_nobody_can_judge_holds(tmp_path: Path, said: str) -> None:
    content = said.replace("HOST", socket.gethostname())
    (tmp_path / CLAIM_FILE).write_text(content, encoding="latin-1")
    with refuses(FolderInUse, "run.in-use"):
        acquire_lock(tmp_path)
    (tmp_path / CLAIM_FILE).write_text(f"{ended_process()} another-machine\n")
    with refuses(FolderInUse, "run.in-use") as refused:
        acquire_lock(tmp_path)
    assert "another-machine" in str(refused.value)


@pytest.mark.usefixtures("no_locks")
def test_who_comes_late_to_a_left_claim_puts_the_new_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes the same stale claim and creates its own first."""
    claim = tmp_path / CLAIM_FILE
    claim.write_text(f"{ended_process()} {socket.gethostname()}\n")
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        if self == claim:
            claim.write_text("1 first\n")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    with refuses(FolderInUse, "run.in-use"):
        acquire_lock(tmp_path)
    assert claim.read_text() == "1 first\n"


@pytest.mark.usefixtures("no_locks")
def test_a_claim_that_cannot_be_written_is_not_left(tmp_path: Path) -> None:
    """An empty claim would name no process, and lock the folder for ever."""
    folder = tmp_path / "run"
    folder.mkdir()
    with limited_file_size(0), pytest.raises(OSError, match="too large"):
        acquire_lock(folder)
    assert not (folder / CLAIM_FILE).exists()
    acquire_lock(folder).release()


def test_a_disk_that_reports_its_error_when_a_lock_is_closed_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = try_lock(tmp_path / ".lock")
    assert lock is not None

    def full(fd: int, close: Callable[[int], None] = os.close) -> None:
        close(fd)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "close", full)
    lock.release()
    monkeypatch.undo()
    assert not is_locked(tmp_path)


def test_a_lock_that_fails_for_another_reason_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, how: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with refuses(RunFolderError, "disk.not-writable") as refused:
        RunFolder(tmp_path).locked().__enter__()
    assert "Input/output error" in str(refused.value)


def test_a_disk_that_does_not_say_how_full_it_is_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(shutil, "disk_usage", unknown)
    with refuses(RunFolderError, "disk.not-writable") as refused:
        RunFolder(tmp_path / "run").locked().__enter__()
    assert "Input/output error" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_the_command_line_works_where_nothing_locks(tmp_path: Path) -> None:
    done = proctor_where_nothing_locks(*QUICK_RUN, f"--output_dir={tmp_path / 'run'}")
    assert (done.returncode, len(read_journal(tmp_path / "run").rows)) == (0, 4), done.stderr


def test_a_disk_that_cannot_sync_is_no_reason_to_stop(
    run: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(fd: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", cannot)
    monkeypatch.setattr("proctor.callbacks.journal_writer._SYNC_EVERY_S", 0.0)
    assert run().complete


@pytest.mark.parametrize("every_s", [0.0, 1000.0], ids=["after an episode", "at the end"])
def test_a_journal_that_the_disk_does_not_take_is_one_line_that_says_what_is_kept(
    run: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, every_s: float
) -> None:
    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("proctor.callbacks.journal_writer._SYNC_EVERY_S", every_s)
        patch.setattr("proctor.callbacks.journal_writer.sync", failing)
        with refuses(RunFolderError, "disk.write-failed") as refused:
            run(output_dir=str(tmp_path / "run"))
    assert f"{tmp_path / 'run' / 'episodes.jsonl'}: Input/output error" in str(refused.value)
    assert "--resume" in str(refused.value)
    assert run(output_dir=str(tmp_path / "run"), resume=True).complete
