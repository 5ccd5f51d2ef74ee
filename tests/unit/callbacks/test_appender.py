"""Staged episodes are appended in order, several at a time, and not after a failure."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proctor.callbacks import appender as appender_module
from proctor.callbacks.appender import Appender
from proctor.datasets.writing.staged_episode import StagedEpisode
from proctor.errors import RunFolderError
from proctor.types import EpisodeKey
from tests.refusals import refuses

KEYS: list[EpisodeKey] = [("suite", 0, index) for index in range(200)]


class Dataset:
    """A writer and a ledger that remember; the writer waits until it is let."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.groups: list[list[int]] = []
        self.noted: list[EpisodeKey] = []
        self.let = threading.Event()
        self.let.set()
        self.fails = False

    def append_all(self, takes: list[StagedEpisode]) -> int:
        self.let.wait(60)
        if self.fails:
            raise OSError(28, "No space left on device")
        self.groups.append([take.length for take in takes])
        assert len(self.noted) == sum(map(len, self.groups))  # written down before they are in
        return 0

    def add(self, *keys: EpisodeKey) -> None:
        self.noted += keys

    def staging_folder(self, key: EpisodeKey) -> Path:
        folder = self.folder / str(key[2])
        folder.mkdir()
        (folder / "take.json").write_text(json.dumps({"length": key[2] + 1, "tasks": ["push"]}))
        (folder / "frames.arrow").write_bytes(bytes(1000))
        return folder


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(tmp_path)


@pytest.fixture
def appender(dataset: Dataset) -> Appender:
    recording: Any = SimpleNamespace(folder=dataset.folder, staging_folder=dataset.staging_folder)
    writer: Any = dataset
    return Appender(writer, recording, dataset)


def put(appender: Appender, *keys: EpisodeKey) -> None:
    for key in keys:
        appender.enqueue(key)
        appender.append_if_due()


def lengths(dataset: Dataset) -> list[int]:
    return [length for group in dataset.groups for length in group]


def test_staged_episodes_are_appended_in_order_and_many_at_once(
    dataset: Dataset, appender: Appender
) -> None:
    put(appender, *KEYS[:100])
    appender.flush()
    assert lengths(dataset) == list(range(1, 101))
    assert dataset.noted == KEYS[:100]
    assert len(dataset.groups) < 10
    assert max(map(len, dataset.groups)) <= 256
    appender.stop()


def test_a_single_staged_episode_is_appended_after_a_while(
    dataset: Dataset, appender: Appender, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(appender, KEYS[0])
    assert appender._running is None
    monkeypatch.setattr(appender_module, "_MAX_WAIT_S", -1.0)
    appender.append_if_due()
    appender.stop()
    assert dataset.groups == [[1]]


def test_callers_do_not_wait_for_an_append(dataset: Dataset, appender: Appender) -> None:
    dataset.let.clear()
    put(appender, *KEYS[:70])  # hangs here if it does
    assert dataset.groups == []
    dataset.let.set()
    appender.flush()
    assert lengths(dataset) == list(range(1, 71))
    appender.stop()


def test_an_append_holds_no_more_memory_than_its_limit(
    dataset: Dataset, appender: Appender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender_module, "_MAX_BYTES", 2500)
    put(appender, *KEYS[:5])
    appender.flush()
    assert dataset.groups == [[1, 2], [3, 4], [5]]
    appender.stop()


def test_a_failure_is_raised_once_and_nothing_is_appended_after_it(
    dataset: Dataset, appender: Appender
) -> None:
    dataset.fails = True
    with refuses(RunFolderError, "disk.write-failed") as refused:
        put(appender, *KEYS[:40])  # raises if the thread has failed before the last one
        appender.flush()
    assert "--resume" in str(refused.value)
    dataset.fails = False
    put(appender, *KEYS[40:80])
    appender.flush()
    appender.stop()
    assert dataset.groups == []
