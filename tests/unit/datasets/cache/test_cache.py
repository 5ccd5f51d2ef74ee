"""A cache gives what decoding gives, never anything stale, and no more than it may hold."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor import datasets
from proctor.cli import main
from proctor.datasets.cache.folder import list_entries, remove_entries
from proctor.datasets.cache_settings import CacheKind, FrameCacheSettings
from proctor.datasets.format.episodes import Episodes, VideoSpans
from proctor.datasets.format.info import Info
from proctor.datasets.frames.packets import concatenate
from proctor.datasets.frames.video import FrameReader
from proctor.datasets.reading.cached import CachedEpisodes, CachedSource, with_cache
from proctor.datasets.reading.frame_source import VideoSource
from proctor.errors import DatasetError, UsageError
from proctor.features import Array
from tests.refusals import refuses
from tests.unit.datasets.frames.moving_pictures import FPS, make_video, number_of, processes
from tests.unit.datasets.making import GOLDEN

pytest.importorskip("av", reason="PyAV is not installed (proctor[dataset])")

LENGTHS = np.array([5, 3, 8])
KEY = "observation.images.top"
PICTURE = 32 * 48 * 3


class Counting(FrameReader):
    """A reader that counts the frames it is asked for."""

    asked = 0
    counting = threading.Lock()

    def read(self, requests: Any, pixels: Any = None, threads: int | None = None) -> Array:
        with self.counting:
            self.asked += len(requests)
        return super().read(requests, pixels, threads)


def make_dataset(root: Path, first: int = 0) -> VideoSource:
    """Three episodes in two files, whose frames are numbered on from ``first``."""
    starts = first + np.concatenate([[0], np.cumsum(LENGTHS)])
    parts = [
        make_video(root / f"part{e}.mp4", range(starts[e], starts[e] + n))
        for e, n in enumerate(LENGTHS.tolist())
    ]
    folder = root / "videos" / KEY / "chunk-000"
    concatenate(parts[:2], folder / "file-000.mp4")
    concatenate(parts[2:], folder / "file-001.mp4")
    return source_of(root)


def source_of(root: Path, **other: Any) -> VideoSource:
    ends = np.cumsum(LENGTHS)
    entry = {"dtype": "video", "shape": [32, 48, 3], "names": ["height", "width", "channels"]}
    zero = np.zeros(3, np.int64)
    spans = VideoSpans(
        zero, np.array([0, 0, 1]), np.array([0, 0.5, 0.0]), np.array([0.5, 0.8, 0.8])
    )
    episodes = Episodes(
        np.arange(3), LENGTHS, zero, zero, ends - LENGTHS, ends, [("x",)] * 3, {KEY: spans}
    )
    info = Info(fps=FPS, features={KEY: entry}, total_episodes=3, total_frames=16)
    return VideoSource(root, info, episodes, KEY, **{"reader": Counting(threads=2), **other})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dataset")
    make_dataset(root)
    return root


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., FrameCacheSettings]:
    def make(kind: str = "disk", gb: float = 1.0) -> FrameCacheSettings:
        return FrameCacheSettings(CacheKind(kind), gb, str(tmp_path / "cache"))

    return make


Settings = Callable[..., FrameCacheSettings]
ALL = CachedEpisodes("me/demos", np.arange(3))
EPISODES = np.array([2, 0, 1, 2, 2, 0])
FRAMES = np.array([7, 0, 2, 0, 3, 4])
NUMBERS = [15, 0, 7, 8, 11, 4]


def cached(
    source: VideoSource, settings: FrameCacheSettings, kept: CachedEpisodes = ALL
) -> CachedSource:
    return CachedSource(source, settings, kept, KEY)


def numbers(pictures: Array) -> list[int]:
    return [number_of(picture) for picture in pictures]


@pytest.mark.parametrize("kind", ["ram", "disk"])
@pytest.mark.parametrize("size", [None, (16, 24)])
def test_a_cached_picture_is_the_decoded_one(
    kind: str, size: tuple[int, int] | None, root: Path, settings: Settings
) -> None:
    plain = source_of(root, size=size)
    cache = cached(source_of(root, size=size), settings(kind))
    expected = plain.read(EPISODES, FRAMES)
    assert numbers(expected) == NUMBERS
    for _ in range(2):
        assert np.array_equal(cache.read(EPISODES, FRAMES), expected)
    assert cache.shape == plain.shape == (*(size or (32, 48)), 3)


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_parts_that_are_filled_side_by_side_are_each_decoded_once(
    kind: str, root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.datasets.reading.cached._SHARD_BYTES", 2 * PICTURE)
    source = source_of(root)
    cache = cached(source, settings(kind))
    heard: list[int] = []
    cache.fill(np.arange(3), lambda done, _: heard.append(done), cores=9)
    assert len(heard) == 3, "every episode is a part of its own"
    assert heard == sorted(heard)
    assert source.reader.asked == 16
    assert numbers(cache.read(EPISODES, FRAMES)) == NUMBERS


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_every_frame_is_decoded_once_and_only_of_the_episodes_that_are_read(
    kind: str, root: Path, settings: Settings
) -> None:
    source = source_of(root)
    cache = cached(source, settings(kind))
    heard: list[tuple[int, int]] = []
    cache.fill(np.array([0, 2]), lambda done, total: heard.append((done, total)))
    assert source.reader.asked == 13
    assert heard[-1] == (13, 13)
    cache.read(np.array([2, 0]), np.array([1, 1]))
    assert source.reader.asked == 13
    cache.read(EPISODES, FRAMES)
    assert source.reader.asked == 16


def test_another_process_and_a_later_one_find_what_is_there(root: Path, settings: Settings) -> None:
    first = cached(source_of(root), settings())
    first.fill(np.arange(3))
    again = source_of(root)
    both = cached(again, settings())
    assert numbers(both.read(EPISODES, FRAMES)) == NUMBERS
    assert again.reader.asked == 0
    copy = pickle.loads(pickle.dumps(both))
    assert numbers(copy.read(EPISODES, FRAMES)) == NUMBERS
    assert copy._source.reader.asked == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_are_handed_a_cache_in_memory_share_it(
    method: str, root: Path, settings: Settings
) -> None:
    cache = cached(source_of(root), settings("ram"))
    cache.fill(np.arange(3))
    with processes(method, 1) as pool:
        assert pool.apply(_read, (cache,)) == (0, NUMBERS)
    alone = pickle.dumps(cache)
    cache.close()
    assert _read(pickle.loads(alone)) == (16, NUMBERS)


def _read(cache: CachedSource) -> tuple[int, list[int]]:
    shown = numbers(cache.read(EPISODES, FRAMES))
    return cache._source.reader.asked, shown


def test_pictures_of_another_size_are_another_entry(root: Path, settings: Settings) -> None:
    for size in (None, (16, 24), (24, 16)):
        cached(source_of(root, size=size), settings()).read(EPISODES, FRAMES)
    assert len(list_entries(settings().folder)) == 3


@pytest.mark.parametrize("how", ["rewritten", "same size and times", "other spans"])
def test_a_changed_dataset_is_never_served_from_what_was_cached_before(
    how: str, tmp_path: Path, settings: Settings
) -> None:
    root = tmp_path / "set"
    cached(make_dataset(root), settings()).fill(np.arange(3))
    videos = sorted(root.glob("videos/*/*/*.mp4"))
    if how == "other spans":
        source = source_of(root)
        source.episodes.videos[KEY].from_s[:] = [0.3, 0.0, 0.0]
        cache = cached(source, settings())
        assert numbers(cache.read(np.array([0, 1]), np.array([0, 0]))) == [3, 0]
        return
    before = [path.stat() for path in videos]
    make_dataset(root, first=20)
    if how == "same size and times":
        for path, old in zip(videos, before, strict=True):
            with path.open("r+b") as file:
                file.truncate(max(old.st_size, path.stat().st_size))
            os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    again = cached(source_of(root), settings())
    assert numbers(again.read(EPISODES, FRAMES)) == [number + 20 for number in NUMBERS]


def test_a_dataset_that_changes_while_it_is_decoded_is_not_kept(
    tmp_path: Path, settings: Settings
) -> None:
    root = tmp_path / "set"
    cache = cached(make_dataset(root), settings())
    make_dataset(root, first=20)
    with refuses(DatasetError, "dataset.changed") as refused:
        cache.fill(np.array([0]))
    assert "file-000.mp4" in str(refused.value)
    assert not cache._store.is_done().any()


def _fill(source: VideoSource, settings: FrameCacheSettings) -> tuple[int, list[int]]:
    cache = cached(source, settings)
    shown = cache.read(EPISODES, FRAMES)
    return source.reader.asked, numbers(shown)


def test_processes_that_fill_at_the_same_time_share_the_work(
    root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.datasets.reading.cached._SHARD_BYTES", PICTURE)
    with processes("fork", 3) as pool:
        pending = [pool.apply_async(_fill, (source_of(root), settings())) for _ in range(3)]
        results = [one.get(60) for one in pending]
    assert [shown for _, shown in results] == [NUMBERS] * 3
    assert sum(asked for asked, _ in results) == 16


def test_one_who_waits_goes_on_when_the_other_is_done(root: Path, settings: Settings) -> None:
    cache, other = (cached(source_of(root), settings()) for _ in range(2))
    lock = other._store.claim(0)
    assert lock is not None
    start = time.monotonic()
    threading.Timer(0.2, lock.release).start()
    assert numbers(cache.read(EPISODES, FRAMES)) == NUMBERS
    assert time.monotonic() - start > 0.15


def test_a_kill_while_filling_leaves_nothing_wrong(root: Path, settings: Settings) -> None:
    folder = settings().folder
    program = textwrap.dedent(
        f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path.cwd())!r})
        import numpy as np
        from pathlib import Path
        import proctor.datasets.reading.cached as frames_kept
        from proctor.datasets.cache_settings import CacheKind, FrameCacheSettings
        from tests.unit.datasets.cache.test_cache import *
        class Dying(Counting):
            def read(self, requests, pixels=None, threads=None):
                if self.asked:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().read(requests, pixels, threads)
        frames_kept._SHARD_BYTES = 5 * PICTURE
        source = source_of(Path({str(root)!r}), reader=Dying(threads=1))
        kept = FrameCacheSettings(CacheKind.DISK, 1.0, {str(folder)!r})
        cached(source, kept).fill(np.arange(3), cores=1)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    (entry,) = list_entries(folder)
    assert not entry.in_use
    source = source_of(root)
    cache = cached(source, settings())
    assert 0 < cache._store.is_done().sum() < 3
    assert numbers(cache.read(EPISODES, FRAMES)) == NUMBERS
    assert 0 < source.reader.asked < 16


def test_the_least_recently_used_goes_first_and_never_one_in_use(
    root: Path, settings: Settings
) -> None:
    small = settings(gb=2.5 * 16 * PICTURE / 1e9)

    def use(size: tuple[int, int] | None) -> CachedSource:
        cache = cached(source_of(root, size=size), small)
        cache.fill(np.arange(3))
        time.sleep(0.02)
        return cache

    use((32, 46)).close()
    kept = use((32, 44))
    use((32, 48)).close()
    shapes = [entry.card.shape[1] for entry in list_entries(small.folder)]
    assert shapes == [44, 48]
    other = use((32, 40))
    with refuses(DatasetError, "cache.too-small"):
        use((30, 48))
    other.close()
    kept.close()
    removed, stays = remove_entries(small.folder)
    assert (len(removed), stays) == (2, [])
    assert not [path for path in small.folder.iterdir() if path.name != ".lock"]


def test_what_is_in_use_is_not_cleared(root: Path, settings: Settings) -> None:
    cache = cached(source_of(root), settings())
    cache.fill(np.arange(3))
    folder = settings().folder
    (entry,) = list_entries(folder)
    assert entry.in_use
    assert entry.nbytes >= 16 * PICTURE
    assert (entry.card.dataset, entry.card.camera, entry.card.frames) == ("me/demos", KEY, 16)
    assert remove_entries(folder) == ([], [entry])
    cache.close()
    with refuses(DatasetError, "cache.not-found") as refused:
        remove_entries(folder, ["other"])
    assert "'other'" in str(refused.value)
    removed, _ = remove_entries(folder, [entry.name])
    assert [one.name for one in removed] == [entry.name]
    assert list_entries(folder) == []


def test_the_command_lists_and_clears(
    root: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["data", "cache", f"--cache_dir={settings().folder}"]
    assert main(command) == 0
    assert "0 kept, 0.00 MB" in capsys.readouterr().out
    cache = cached(source_of(root), settings())
    cache.fill(np.arange(3))
    (entry,) = list_entries(settings().folder)
    assert main(command) == 0
    listed = capsys.readouterr().out
    assert f"{entry.name}    0.09 MB  me/demos {KEY} 48x32, in use\n" in listed
    assert main([*command, "--clear"]) == 0
    said = capsys.readouterr().out
    assert "0 removed, 0.00 MB" in said
    assert "in use, stays" in said
    cache.close()
    assert main([*command, entry.name]) == 2
    assert main([*command, "nothing", "--clear"]) == 2
    assert "no frames are cached as 'nothing'" in capsys.readouterr().err
    assert main([*command, entry.name, "--clear"]) == 0
    assert "1 removed, 0.09 MB" in capsys.readouterr().out
    assert list_entries(settings().folder) == []


def test_an_entry_that_was_never_complete_is_made_anew(root: Path, settings: Settings) -> None:
    cache = cached(source_of(root), settings())
    cache.fill(np.arange(3))
    cache.close()
    (entry,) = list_entries(settings().folder)
    (settings().folder / entry.name / "entry.json").write_text("{")
    assert list_entries(settings().folder) == []
    assert numbers(cached(source_of(root), settings()).read(EPISODES, FRAMES)) == NUMBERS


def test_what_does_not_fit_is_refused_before_anything_is_decoded(
    root: Path, settings: Settings
) -> None:
    source = source_of(root)
    sources = {KEY: source, "other": source}
    for kind in ("ram", "disk"):
        with refuses(DatasetError, "cache.too-small") as refused:
            with_cache(sources, settings(kind, gb=1.5 * 16 * PICTURE / 1e9), ALL)
        assert "--dataset" in str(refused.value)
    fewer = CachedEpisodes("me/demos", np.array([1]))
    made = with_cache(sources, settings("ram", gb=1.5 * 16 * PICTURE / 1e9), fewer)
    assert numbers(made["other"].read(np.array([1]), np.array([2]))) == [7]
    assert with_cache(sources, settings("off"), ALL) == sources
    with refuses(UsageError, "flag.out-of-range") as refused:
        with_cache(sources, settings("disk", gb=-1), ALL)
    assert "--dataset.cache_gb" in str(refused.value)


def test_a_full_disk_and_a_file_system_without_locks_are_said_in_one_line(
    root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = cached(source_of(root), settings())

    def full(*given: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        with refuses(DatasetError, "cache.not-writable"):
            cache.read(EPISODES, FRAMES)
    with monkeypatch.context() as patch:
        patch.setattr("proctor.datasets.cache.store.try_lock", full)
        with refuses(DatasetError, "cache.not-writable"):
            cache.read(EPISODES, FRAMES)
    assert numbers(cache.read(EPISODES, FRAMES)) == NUMBERS
    (tmp_path / "file").write_text("")
    bad = FrameCacheSettings(CacheKind.DISK, 1.0, str(tmp_path / "file"))
    with refuses(DatasetError, "cache.not-usable"):
        cached(source_of(root), bad)

    def no_locks(*given: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with refuses(DatasetError, "cache.no-locks") as refused:
        cached(source_of(root), settings())
    assert "--dataset.cache" in str(refused.value)


@pytest.mark.parametrize("kind", ["ram", "disk"])
@pytest.mark.parametrize("name", ["video3ep", "image1ep"])
@pytest.mark.parametrize("size", [None, (24, 20)])
def test_a_dataset_opened_with_a_cache_gives_the_same_batches(
    kind: str, name: str, size: tuple[int, int] | None, settings: Settings
) -> None:
    plain = datasets.open(GOLDEN / name, image_size=size)
    kept = datasets.open(GOLDEN / name, image_size=size, cache=settings(kind))
    (camera,) = plain.info.cameras
    positions = [3, 0, len(plain) - 1, 3]
    expected = plain.batch(positions)[camera]
    for _ in range(2):
        assert np.array_equal(kept.batch(positions)[camera], expected)
    shape = plain.interface.features[camera].shape
    assert expected.shape == (4, *shape)
    assert shape[:2] == (size or plain.info.shape(camera)[:2])


def test_some_episodes_fill_no_more_than_themselves(settings: Settings) -> None:
    kept = datasets.open(GOLDEN / "video3ep", episodes=[1], cache=settings())
    heard: list[tuple[str, int, int]] = []
    kept.fill_cache(lambda *said: heard.append(said))
    assert heard == [(kept.info.cameras[0], len(kept), len(kept))]
    (entry,) = list_entries(settings().folder)
    assert entry.card.planned_bytes < entry.card.frames * np.prod(entry.card.shape)
