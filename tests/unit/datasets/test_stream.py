"""Datasets that are streamed: what comes, in which order, and which files are there meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.datasets.reader import open as open_dataset
from proctor.datasets.reading.stream_files import LocalFiles
from proctor.datasets.stream import Stream, StreamOptions, open_stream
from proctor.errors import DatasetError, UsageError
from proctor.system.hub.repositories import HubLocation
from tests.refusals import refuses
from tests.unit.datasets.making import GOLDEN, TOP, copied, make_numbers, turn_old

LENGTHS = [5, 3, 1, 7, 4]
FRAMES = sum(LENGTHS)
DELTAS = {"observation.state": [-0.2, 0.0], "action": [0.0, 0.1, 0.2]}
SEEN = {**DELTAS, TOP: [-0.1, 0.0]}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five episodes in three files: 0 1, 2 3, 4."""
    return make_numbers(tmp_path_factory.mktemp("numbers") / "d", LENGTHS)


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes, each with files of its own."""
    root = copied("video3ep", tmp_path_factory.mktemp("films") / "d")
    turn_old(root)
    return root


class Counting(LocalFiles):
    """A folder that notes what is asked of it, and which of its files are out now."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fetched: list[str] = []
        self.out: set[Path] = set()
        self.most_out = 0

    def fetch(self, file: Path) -> int:
        self.fetched.append(file.relative_to(self.root).as_posix())
        self.out.add(file)
        self.most_out = max(self.most_out, len(self.out))
        return super().fetch(file)

    def drop(self, file: Path) -> None:
        self.out.remove(file)


def streamed(root: Path, **options: Any) -> Stream:
    return Stream(LocalFiles(root), StreamOptions(**options))


def order(stream: Stream) -> list[int]:
    return [int(item["index"]) for item in stream]


def assert_the_readers(items: list[dict[str, Any]], root: Path, **options: Any) -> None:
    """Check that ``items`` are all that the reader has, each once, to the bit."""
    whole = open_dataset(root, **options)
    expected = {int(item["index"]): item for item in map(whole.__getitem__, range(len(whole)))}
    assert sorted(int(item["index"]) for item in items) == sorted(expected)
    for item in items:
        other = expected[int(item["index"])]
        assert item.keys() == other.keys()
        for key, value in item.items():
            np.testing.assert_array_equal(value, other[key], err_msg=key, strict=True)


@pytest.mark.parametrize("deltas", [None, SEEN])
def test_every_frame_comes_once_and_is_what_the_reader_gives(
    films: Path, deltas: dict[str, list[float]] | None
) -> None:
    for root in (films, GOLDEN / "video3ep"):
        items = list(streamed(root, delta_timestamps=deltas))
        assert_the_readers(items, root, delta_timestamps=deltas)


def test_pictures_that_lie_in_tables_come_too() -> None:
    root = GOLDEN / "image1ep"
    assert_the_readers(list(streamed(root)), root)


def test_a_window_at_the_edge_of_a_shard_stays_inside_its_episode(numbers: Path) -> None:
    items = {int(item["index"]): item for item in streamed(numbers, delta_timestamps=DELTAS)}
    first, last = items[9], items[15]  # of episode 3, at the end of the second file
    assert first["observation.state"][:, 0].tolist() == [9, 9]
    assert first["observation.state_is_pad"].tolist() == [True, False]
    assert last["action"].tolist() == [items[15]["action"][0].tolist()] * 3
    assert last["action_is_pad"].tolist() == [False, True, True]
    assert_the_readers(list(items.values()), numbers, delta_timestamps=DELTAS)


def test_the_order_is_a_function_of_the_seed_and_the_epoch(numbers: Path) -> None:
    stream, again, other = (streamed(numbers, seed=seed) for seed in (1, 1, 2))
    first, second = order(stream), order(stream)
    assert [order(again), order(again)] == [first, second]
    assert len({tuple(found) for found in (first, second, order(other))}) == 3


@pytest.mark.parametrize("size", [1, 6, FRAMES, 100])
def test_batches_come_in_the_order_of_the_frames(numbers: Path, size: int) -> None:
    batches = list(streamed(numbers, seed=3).batches(size))
    assert np.concatenate([b["index"] for b in batches]).tolist() == order(
        streamed(numbers, seed=3)
    )
    assert all(len(b["task"]) == len(b["grid"]) == size for b in batches[:-1])


@pytest.mark.parametrize("read", [0, 1, 7, FRAMES - 1, FRAMES, FRAMES + 13])
def test_a_stream_goes_on_where_another_one_stopped(numbers: Path, read: int) -> None:
    whole = streamed(numbers, seed=5, buffer=6)
    both = order(whole) + order(whole)
    stopped = streamed(numbers, seed=5, buffer=6)
    before = [
        int(item["index"]) for item in itertools.islice(itertools.chain(stopped, stopped), read)
    ]
    resumed = Stream(LocalFiles(numbers), StreamOptions(seed=5, buffer=6), stopped.state())
    after: list[int] = []
    while len(before) + len(after) < len(both):
        after += order(resumed)
    assert before + after == both


def test_a_stream_that_goes_on_fetches_only_what_is_left(numbers: Path) -> None:
    whole = order(streamed(numbers, buffer=1))
    left = {0: 8, 8: 8, 16: 4}[whole[-1] // 8 * 8]  # the frames of the last file
    state = replace(streamed(numbers, buffer=1).state(), position=FRAMES - left)
    files = Counting(numbers)
    assert order(Stream(files, StreamOptions(buffer=1), state)) == whole[-left:]
    assert len(files.fetched) == 1


def test_only_the_chosen_episodes_come_and_only_their_files_are_fetched(films: Path) -> None:
    files = Counting(films)
    stream = Stream(files, StreamOptions(episodes=[2, 0], delta_timestamps=SEEN))
    assert_the_readers(list(stream), films, episodes=[0, 2], delta_timestamps=SEEN)
    assert len(stream) == 21
    assert len(files.fetched) == 4
    assert not any("000001" in name for name in files.fetched)


def test_episodes_of_a_file_may_be_left_out(numbers: Path) -> None:
    items = list(streamed(numbers, episodes=[1, 2, 4], delta_timestamps=DELTAS))
    assert_the_readers(items, numbers, episodes=[1, 2, 4], delta_timestamps=DELTAS)


def test_a_large_buffer_mixes_files_and_one_of_a_single_frame_keeps_their_order(
    numbers: Path,
) -> None:
    def changes(found: list[int]) -> int:
        return sum(a // 8 != b // 8 for a, b in itertools.pairwise(found))

    kept = order(streamed(numbers, seed=1, buffer=1))
    assert changes(kept) == 2
    assert [i for i in kept if i < 8] == list(range(8))
    assert changes(order(streamed(numbers, seed=1))) > 5


def test_no_more_files_are_kept_than_were_asked_for(films: Path) -> None:
    files = Counting(films)
    assert order(Stream(files, StreamOptions(seed=1, kept_gb=0))) == order(streamed(films, seed=1))
    assert files.most_out <= 4  # the two of one shard while the next one's come
    assert len(files.out) == 2


def test_a_dataset_on_the_hub_comes_file_by_file_and_nothing_of_it_stays(
    films: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(repo: str, revision: str, files: list[str], place: HubLocation) -> Path:
        assert (repo, revision, place.kind) == ("me/demos", "v2.1", "dataset")
        assert place.folder is not None
        for path in films.rglob("*"):
            name = path.relative_to(films).as_posix()
            if path.is_file() and any(fnmatch(name, some) for some in files):
                asked.append(name)
                (place.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place.folder / name)
        return place.folder

    monkeypatch.setattr("proctor.datasets.source.download", download)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stream = open_stream("me/demos", revision="v2.1", options=StreamOptions(kept_gb=0, buffer=1))
    assert all(name.startswith("meta/") for name in asked)
    assert order(stream) == order(streamed(films, buffer=1))
    assert len([name for name in asked if name.endswith(".mp4")]) == 3
    (root,) = tmp_path.iterdir()
    assert len(list(root.rglob("*.mp4"))) == 1
    stream.close()
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_is_said_in_one_line(numbers: Path, films: Path, tmp_path: Path) -> None:
    with refuses(DatasetError, "dataset.unknown-episode") as refused:
        streamed(numbers, episodes=[9])
    assert "episode 9" in str(refused.value)
    state = streamed(numbers, seed=1).state()
    with refuses(UsageError, "stream.wrong-state"):
        Stream(LocalFiles(numbers), StreamOptions(seed=2), state)
    for known, fits in (("", True), ("0" * 16, False)):  # of an older Proctor, of other episodes
        other = replace(state, episodes=known)
        with contextlib.nullcontext() if fits else refuses(UsageError, "stream.wrong-state"):
            Stream(LocalFiles(numbers), StreamOptions(seed=1), other)
    assert streamed(numbers, episodes=[0, 1]).state() != streamed(numbers, episodes=[0, 2]).state()
    with refuses(UsageError, "stream.wrong-state") as refused:
        Stream(LocalFiles(numbers), StreamOptions(seed=1), replace(state, position=99))
    assert "position 99" in str(refused.value)
    with refuses(UsageError, "stream.invalid-options"):
        streamed(numbers, buffer=0)
    with refuses(UsageError, "dataset.not-found"):
        open_stream(tmp_path / "nothing")
    torn = shutil.copytree(films, tmp_path / "torn")
    next(torn.rglob("*.mp4")).unlink()
    with refuses(DatasetError, "dataset.missing-file") as refused:
        list(streamed(torn))
    assert "mp4" in str(refused.value)
