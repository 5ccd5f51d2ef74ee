"""What writers that were killed leave of atomic writes."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from proctor.system.files import atomic_write


def unfinished(path: Path, pid: int) -> Path:
    part = path.with_name(f".{path.name}.{pid}.part")
    part.write_text("half")
    return part


def ended_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_next_write_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    path = tmp_path / "p[1].html"
    unfinished(path, ended_process())
    atomic_write(path, b"whole")
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_the_file_of_a_writer_that_lives_stays(tmp_path: Path) -> None:
    path = tmp_path / "p.html"
    part = unfinished(path, os.getppid())
    atomic_write(path, b"whole")
    assert part.read_text() == "half"


def test_the_file_of_a_writer_on_another_machine_stays(tmp_path: Path) -> None:
    """Its number means nothing here, but its lock does."""
    path = tmp_path / "p.html"
    part = unfinished(path, ended_process())
    with part.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        atomic_write(path, b"whole")
    assert part.read_text() == "half"


def test_a_link_in_place_of_an_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "p.html", tmp_path / "other"
    other.write_text("mine")
    path.with_name(f".{path.name}.{ended_process()}.part").symlink_to(other)
    atomic_write(path, b"whole")
    assert other.read_text() == "mine"
