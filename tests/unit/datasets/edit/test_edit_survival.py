"""Edits that are killed, refused or run out of space: one of the two datasets is there, whole."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proctor import datasets
from proctor.datasets.edit import build as build_module
from proctor.datasets.edit import destination, operations
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import in_place_destination, new_destination
from proctor.datasets.edit.edit_plan import open_source
from proctor.datasets.edit.split import split_into
from proctor.datasets.format.info_file import read_info
from proctor.datasets.writing.staging import lock_dataset, unlock_dataset
from proctor.errors import UsageError
from proctor.system import files
from tests.refusals import refuses
from tests.unit.datasets.making import GOLDEN

KILLED_IN = """
import os, signal, sys
from pathlib import Path
from proctor.datasets.edit import build, destination, frames, operations, videos
from proctor.system import files

when, module, name = sys.argv[2].split(":")
module = {"build": build, "frames": frames, "destination": destination, "videos": videos}[module]
original = getattr(module, name)

def die(*args, **kwargs):
    if when == "after":
        original(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(module, name, die)
build.edit(Path(sys.argv[1]), destination.in_place_destination(Path(sys.argv[1])),
           lambda source: operations.delete(source, [0]))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "video3ep", tmp_path / "demos"))


def killed_in(root: Path, where: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_IN, str(root), where], check=False)
    assert done.returncode == -signal.SIGKILL


def contents(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize("where", ["before:frames:_write", "before:destination:swap"])
def test_a_kill_before_the_swap_leaves_the_old_one_whole(root: Path, where: str) -> None:
    before = contents(root)
    killed_in(root, where)
    assert contents(root) == before
    edit(
        root, in_place_destination(root), lambda s: operations.delete(s, [0])
    )  # and it can be done again
    assert read_info(root).total_episodes == 2
    assert [path.name for path in root.parent.iterdir()] == ["demos"]


def test_a_kill_after_the_swap_leaves_the_new_one_whole(root: Path) -> None:
    killed_in(root, "after:destination:swap")
    assert read_info(root).total_episodes == 2
    assert len(datasets.open(root)) == 16
    assert len(list(root.parent.iterdir())) == 2  # the old one is not removed yet
    edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))
    assert read_info(root).total_episodes == 1
    assert [path.name for path in root.parent.iterdir()] == ["demos"]


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("moment", ["before:destination:swap", "after:destination:swap"])
def test_a_kill_at_the_swap_never_gives_the_edited_dataset_the_backups_name(
    root: Path, moment: str, exchanges: bool
) -> None:
    before = contents(root)
    words = KILLED_IN.replace("(Path(sys.argv[1]))", "(Path(sys.argv[1]), keep_old=True)")
    if not exchanges:
        words = words.replace("when, module", "files._exchange = lambda *_: False\nwhen, module")
    done = subprocess.run([sys.executable, "-c", words, str(root), moment], check=False)
    assert done.returncode == -signal.SIGKILL
    backup = root.with_name("demos_old")
    assert not backup.exists()
    where = in_place_destination(root, keep_old=True)
    edit(root, where, lambda s: operations.delete(s, [0]))
    assert contents(backup) == before
    is_edited = moment.startswith("after")
    assert read_info(root).total_episodes == (1 if is_edited else 2)
    expected = {"demos", "demos_old"} | ({"demos_old_2"} if is_edited else set())
    assert {path.name for path in root.parent.iterdir()} == expected
    assert not any((path / destination._BACKUP_PENDING).exists() for path in root.parent.iterdir())


def test_a_replaced_dataset_that_was_moved_aside_becomes_the_backup(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel does not exchange folders, a kill may come before the last rename."""
    before, rename = contents(root), Path.rename

    def until_killed(self: Path, target: Path) -> Path:
        if self.name == ".demos.edited-swapped":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", until_killed)
        with pytest.raises(KeyboardInterrupt):
            edit(
                root,
                in_place_destination(root, keep_old=True),
                lambda s: operations.delete(s, [0]),
            )
    assert read_info(root).total_episodes == 2
    edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))
    assert contents(root.with_name("demos_old")) == before
    assert sorted(path.name for path in root.parent.iterdir()) == ["demos", "demos_old"]


def test_a_swap_that_fails_leaves_no_backup(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    before = contents(root)
    monkeypatch.setattr(destination, "swap", full)
    where = in_place_destination(root, keep_old=True)
    with refuses(UsageError, "disk.full"):
        edit(root, where, lambda s: operations.delete(s, [0]))
    assert contents(root) == before
    assert [path.name for path in root.parent.iterdir()] == ["demos"]


def test_a_kill_while_a_new_folder_is_made_leaves_no_folder_of_that_name(
    root: Path, tmp_path: Path
) -> None:
    words = KILLED_IN.replace(
        "destination.in_place_destination(Path(sys.argv[1]))",
        "destination.new_destination(Path('out'))",
    )
    done = subprocess.run(
        [sys.executable, "-c", words, str(root), "before:build:write_info"],
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    edit(root, new_destination(tmp_path / "out"), lambda s: operations.delete(s, [0]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demos", "out"]


def test_no_space_left_is_said_with_what_is_kept(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(build_module, "write_stats", full)
    before = contents(root)
    with refuses(UsageError, "disk.full") as refused:
        edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))
    assert f"{root} is unchanged" in str(refused.value)
    with refuses(UsageError, "disk.full"):
        edit(root, new_destination(tmp_path / "out"), lambda s: operations.delete(s, [0]))
    assert contents(root) == before
    assert [path.name for path in tmp_path.iterdir()] == ["demos"]


def test_a_disk_that_fills_up_under_a_video_is_not_a_damaged_video(
    root: Path, tmp_path: Path
) -> None:
    words = """
import resource, sys
from proctor.cli import main
sys.dont_write_bytecode = True  # or half a .pyc would stay behind
resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
sys.exit(main(["data", "delete", sys.argv[1], "--episodes=0", "--in_place"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", words, str(root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "cannot write the edited dataset" in done.stderr
    assert f"{root} is unchanged" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["demos"]


def test_a_dataset_that_is_being_recorded_is_not_edited_in_place(root: Path) -> None:
    lock = lock_dataset(root)
    with refuses(UsageError, "dataset.in-use"):
        edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))
    unlock_dataset(root, lock)


def test_downloads_that_others_share_are_not_edited_in_place(root: Path, tmp_path: Path) -> None:
    shared = tmp_path / "snapshot"
    (shared / "meta").mkdir(parents=True)
    (shared / "meta" / "info.json").symlink_to(root / "meta" / "info.json")
    with refuses(UsageError, "dataset.shared-download"):
        in_place_destination(shared)


def test_a_missing_file_is_named_and_nothing_is_left(root: Path, tmp_path: Path) -> None:
    video = next(root.glob("videos/*/*/*"))
    video.unlink()
    with refuses(UsageError, "dataset.missing-file") as refused:
        edit(root, new_destination(tmp_path / "out"), lambda s: operations.delete(s, [0]))
    assert str(video) in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["demos"]


def test_the_kernel_need_not_know_how_to_exchange_folders(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))
    assert read_info(root).total_episodes == 2
    assert [path.name for path in root.parent.iterdir()] == ["demos"]
    assert ".lock" not in os.listdir(root)  # noqa: PTH208  the names alone
    assert len(open_source(root).rows) == 2


@pytest.mark.parametrize("output", [[], ["out"]])
def test_a_disk_that_does_not_take_the_last_name_leaves_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: list[str]
) -> None:
    def full(folder: Path) -> None:
        if folder == tmp_path:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    before = contents(root)
    monkeypatch.setattr(files, "sync_folder", full)
    monkeypatch.setattr(destination, "sync_folder", full)
    where = new_destination(tmp_path / output[0]) if output else in_place_destination(root)
    with refuses(UsageError, "disk.full"):
        edit(root, where, lambda s: operations.delete(s, [0]))
    assert contents(root) == before
    assert [path.name for path in tmp_path.iterdir()] == ["demos"]


def test_a_split_that_does_not_fit_leaves_none_of_its_datasets(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, splits = build_module.write_stats, {"a": [0], "b": [1, 2]}

    def full(into: Path, *rest: Any) -> None:
        if into.name.startswith(".demos_b."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written(into, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(build_module, "write_stats", full)
        with refuses(UsageError, "disk.full"):
            split_into(root, splits, None)
    assert [path.name for path in tmp_path.iterdir()] == ["demos"]
    built = split_into(root, splits, None)
    assert [made.info.total_episodes for made in built.values()] == [1, 2]


def test_a_disk_that_turns_read_only_is_one_line_and_not_its_lock(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def stop(*_: object) -> None:
        monkeypatch.setattr(Path, "unlink", read_only)
        read_only()

    before = contents(root)
    monkeypatch.setattr(build_module, "write_stats", stop)
    with refuses(UsageError, "disk.not-writable"):
        edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))
    monkeypatch.undo()
    assert contents(root) == before
    edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))


SPLIT_KILLED = """
import os, signal, sys
from pathlib import Path
from proctor.datasets.edit.split import split_into

rename, left = Path.rename, int(sys.argv[3])

def killed(self, target):
    global left
    if "val" in (self.name, target.name) or "train" in (self.name, target.name) \\
       or "demos_" in target.name or target.name == "out":
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)

Path.rename = killed
base = Path(sys.argv[2]) if sys.argv[2] else None
split_into(Path(sys.argv[1]), {"train": [0], "val": [1, 2]}, base)
"""


@pytest.mark.parametrize(("base", "renames"), [
    ("out", 1), ("out", 2), ("", 2), ("", 3), ("used", 3),
])  # fmt: skip
def test_a_killed_split_is_done_again_as_a_whole(
    root: Path, tmp_path: Path, base: str, renames: int
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes").touch()
    words = [str(root), str(tmp_path / base) if base else "", str(renames)]
    done = subprocess.run([sys.executable, "-c", SPLIT_KILLED, *words], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    built = split_into(root, {"train": [0], "val": [1, 2]}, tmp_path / base if base else None)
    assert [read_info(made.root).total_episodes for made in built.values()] == [1, 2]
    assert not [path for path in tmp_path.rglob(".*") if path.name != ".proctor"]


def test_a_split_into_a_folder_in_use_never_removes_what_another_put_there(
    root: Path, tmp_path: Path
) -> None:
    words = [str(root), "", "3"]  # killed before the last dataset got its name
    subprocess.run([sys.executable, "-c", SPLIT_KILLED, *words], check=False)
    (moved,) = tmp_path.glob("demos_*")
    shutil.rmtree(moved)
    moved.mkdir()
    (moved / "mine").touch()
    with refuses(UsageError, "dataset.exists"):
        split_into(root, {"train": [0], "val": [1, 2]})
    assert (moved / "mine").exists()


@pytest.mark.parametrize(("signum", "code"), [("SIGTERM", 130), ("SIGHUP", 129)])
def test_an_edit_that_is_terminated_removes_its_copy(
    root: Path, tmp_path: Path, signum: str, code: int
) -> None:
    words = f"""
import os, signal, sys, time
from proctor.cli import main
from proctor.datasets.edit import destination
def asked(folder):
    os.kill(os.getpid(), signal.{signum})
    time.sleep(60)
destination._sync_all = asked
sys.exit(main(["data", "delete", sys.argv[1], "--episodes=0", "--output=" + sys.argv[2]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", words, str(root), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["demos"]
