"""A kill at any moment loses the open episode only, and confuses nobody who reads what is left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from measurements.child_process import fork_child

from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tasks import read_tasks
from proctor.datasets.reader import open as open_dataset
from proctor.datasets.writer import DatasetWriter
from proctor.datasets.writing import file_allocation
from proctor.datasets.writing.staged_episode import (
    StagedEpisode,
    StagedEpisodeWriter,
    read_staged_episode,
)
from proctor.system import files
from tests.unit.datasets.writing.test_writer import TOP, contents, rows_of, shades
from tests.unit.datasets.writing.toy import FAST, FEATURES, frame

FEW = {key: FEATURES[key] for key in ("observation.state", TOP)}
CHANGES = ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
"""What changes a folder, as Python announces it before it does."""


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "sync", lambda fd: None)  # nothing here cuts the power


@pytest.fixture(autouse=True)
def _small_data_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_allocation, "MB", 1)  # one per episode, written at the same time


def record(writer: DatasetWriter, *shades: int, task: str) -> None:
    for shade in shades:
        writer.add_frame({key: frame(shade)[key] for key in FEW}, task)
    writer.end_episode()


def killed_before(n: int, work: Callable[[], object]) -> bool:
    """Do ``work`` in a child that kills itself before its n-th change; False: it made fewer."""
    left = n

    def count(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        if event in CHANGES and (event != "open" or _writes(args)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def counted() -> None:
        signal.alarm(100)  # should it hang
        sys.addaudithook(count)
        work()

    _, status = os.waitpid(fork_child(counted), 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def _writes(args: tuple[object, ...]) -> bool:
    flags = args[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def check_left(root: Path, least: int) -> int:
    """Check that what is left can be read by us and as LeRobot does; return its episodes."""
    info = read_info(root)
    assert info.total_episodes >= least
    dataset = open_dataset(root)
    assert len(dataset) == info.total_frames
    pictures = dataset.batch(range(len(dataset)))["observation.images.top"]
    assert len(pictures) == info.total_frames
    # LeRobot reads all tables there are, and believes the totals.
    assert [row["index"] for row in rows_of(root)][: len(dataset)] == list(range(len(dataset)))
    tables = sorted((root / "meta/episodes").glob("*/*.parquet"))
    episodes = [row for path in tables for row in pq.read_table(path).to_pylist()]
    assert [row["episode_index"] for row in episodes][: info.total_episodes] == list(
        range(info.total_episodes)
    )
    assert len(read_tasks(root, info)) >= info.total_tasks
    return info.total_episodes


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two episodes, two finished takes, and what they are together when closed."""
    folder = tmp_path_factory.mktemp("killed") / "prepared"
    folder.mkdir()
    writer = DatasetWriter.create(folder / "toy", 10, FEW, FAST)
    record(writer, 0, 1, 2, task="push")
    record(writer, 0, 1, task="push")
    for name, shade in (("take0", 4), ("take1", 6)):
        take = StagedEpisodeWriter(folder / name, writer.info, FAST)
        take.add_frame({key: frame(shade)[key] for key in FEW}, "lift")
        take.add_frame({key: frame(shade + 1)[key] for key in FEW}, "lift")
        take.finish()
    writer.release()
    shutil.copytree(folder, folder.with_name("whole"))
    whole = DatasetWriter.resume(folder.with_name("whole") / "toy")
    whole.append_all(takes_in(folder.with_name("whole")))
    whole.close()
    return folder


def takes_in(folder: Path) -> list[StagedEpisode]:
    return [read_staged_episode(folder / name) for name in ("take0", "take1")]


EVERY = [
    pytest.param(13, id="every thirteenth"),
    pytest.param(1, id="every", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("step", EVERY)
def test_killed_between_two_changes_of_an_append_nothing_is_lost(
    prepared: Path, tmp_path: Path, step: int
) -> None:
    whole = contents(prepared.with_name("whole") / "toy")
    root = tmp_path / "try/toy"

    def append() -> None:
        DatasetWriter.resume(root).append_all(takes_in(root.parent))

    found = []
    for n in range(1, 1000, step):
        shutil.copytree(prepared, tmp_path / "try")
        if not killed_before(n, append):
            break
        found.append(check_left(root, least=2))
        again = DatasetWriter.resume(root)
        assert again.n_episodes == found[-1]
        assert not (root / ".proctor/publishing.json").exists()
        if found[-1] == 2:
            again.append_all(takes_in(root.parent))
        again.close()
        assert contents(root) == whole, n
        shutil.rmtree(tmp_path / "try")
    assert set(found) == {2, 4} or step > 1  # it was killed before and after they were in
    assert len(found) > 20 / step


@pytest.mark.parametrize("step", EVERY)
def test_killed_between_two_changes_of_close_one_of_both_is_there(
    prepared: Path, tmp_path: Path, step: int
) -> None:
    whole = contents(prepared.with_name("whole") / "toy")
    ready = tmp_path / "ready"
    shutil.copytree(prepared, ready)
    writer = DatasetWriter.resume(ready / "toy")
    writer.append_all(takes_in(ready))
    writer.release()
    root = tmp_path / "try/toy"
    kills = 0
    for n in range(1, 1000, step):
        shutil.copytree(ready, tmp_path / "try")
        if not killed_before(n, lambda: DatasetWriter.resume(root).close()):
            break
        kills += 1
        assert check_left(root, least=4) == 4
        DatasetWriter.resume(root).close()
        assert contents(root) == whole, n
        assert [path.name for path in root.parent.iterdir()] == ["toy"]
        shutil.rmtree(tmp_path / "try")
    assert kills > 20 / step


def record_for_ever(root: Path, said: int) -> None:
    """Record episode after episode and say how many there are, until somebody kills this."""
    signal.alarm(100)  # should nobody
    exists = (root / "meta/info.json").exists()
    writer = DatasetWriter.resume(root) if exists else DatasetWriter.create(root, 10, FEW, FAST)
    while True:
        record(writer, 0, 1, 2, task="push")
        os.write(said, f"{writer.n_episodes}\n".encode())


def test_episodes_that_somebody_heard_of_outlive_sigkill(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    chance = random.Random(0)
    heard = 0
    for _ in range(3):
        ear, said = os.pipe()
        callback = fork_child(partial(record_for_ever, root, said))
        os.close(said)
        with os.fdopen(ear) as lines:
            heard = int(lines.readline())
            time.sleep(chance.uniform(0, 0.3))
            os.kill(callback, signal.SIGKILL)
            os.waitpid(callback, 0)
            heard += len(lines.read().splitlines())
        assert check_left(root, least=heard) <= heard + 1  # one may be in that nobody heard of
    assert shades(root) == [[0, 1, 2]] * read_info(root).total_episodes
