"""A dataset of the Hub: the version that we read, only the files that are needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proctor import datasets
from proctor.datasets.source import chosen_revision, lerobot_home
from proctor.errors import DatasetError, HubUnreachable, UsageError
from proctor.system.hub import client as hub_client
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.refusals import refuses
from tests.unit.datasets.making import change, copied, make_numbers


class DatasetHub(LoopbackHub):
    """A Hub of one dataset, tagged v3.0."""

    def now_holds(self, folder: Path, *tags: str) -> None:
        """Let the newest commit have the files of ``folder``."""
        self.hold(folder)
        self.tags = dict.fromkeys(tags or ("v3.0",), self.commit)

    @property
    def revisions(self) -> list[str]:
        """Branches, tags and commits whose commit was asked for."""
        return [
            path.partition("/revision/")[2].partition("?")[0]
            for _, path, _ in self.asked
            if "/revision/" in path
        ]

    @property
    def given(self) -> set[str]:
        """Files that were downloaded."""
        return {
            path.partition("/resolve/")[2].partition("/")[2]
            for _, path, _ in self.asked
            if "/resolve/" in path
        }

    def is_down(self) -> None:
        """Do not answer from now on."""
        self.hook = lambda request, _: request.reply(503)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LEROBOT_HOME", raising=False)
    return tmp_path / "home"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[DatasetHub]:
    monkeypatch.setattr(hub_client, "_RETRY_AFTER_S", (0,))
    with loopback_hub(tmp_path / "machine", monkeypatch, DatasetHub()) as found:
        assert isinstance(found, DatasetHub)
        found.now_holds(copied("video3ep", tmp_path / "remote"))
        yield found


def test_a_dataset_of_the_hub_is_downloaded_once_at_one_commit(hub: DatasetHub, home: Path) -> None:
    ds = datasets.open("someone/demos")
    assert ds.root == home / "hub/datasets--someone--demos/snapshots" / hub.commit
    assert hub.revisions == ["v3.0"]
    assert len(ds.batch([0, 27])["task"]) == 2
    assert ds.interface.name == "someone/demos"
    datasets.open("someone/demos")
    assert hub.revisions == ["v3.0", "v3.0"]
    assert len(hub.given) == len([path for _, path, _ in hub.asked if "/resolve/" in path])


def test_only_the_files_of_the_chosen_episodes_are_downloaded(
    hub: DatasetHub, tmp_path: Path
) -> None:
    hub.now_holds(make_numbers(tmp_path / "numbers", [3, 2, 4, 1, 2]))
    ds = datasets.open("someone/numbers", episodes=[2])
    assert ds.batch(range(4))["index"].tolist() == [5, 6, 7, 8]
    assert {name for name in hub.given if name.startswith("data/")} == {
        "data/chunk-000/file-001.parquet"
    }
    with refuses(DatasetError, "dataset.unknown-episode") as refused:
        datasets.open("someone/numbers", episodes=[9])
    assert "episode 9" in str(refused.value)


def test_names_with_brackets_are_no_patterns(hub: DatasetHub, tmp_path: Path) -> None:
    content = make_numbers(tmp_path / "numbers", [3])
    (content / "data/chunk-000").rename(content / "data/[c]-000")
    change(content, data_path="data/[c]-{chunk_index:03d}/file-{file_index:03d}.parquet")
    hub.now_holds(content)
    assert datasets.open("someone/numbers", episodes=[0])[2]["index"] == 2


def test_a_root_takes_the_download_and_what_is_missing_of_it_later(
    hub: DatasetHub, tmp_path: Path
) -> None:
    hub.now_holds(make_numbers(tmp_path / "numbers", [3, 2, 4]))
    root = tmp_path / "mine"
    assert len(datasets.open("someone/numbers", root=root, episodes=[0])) == 3
    assert hub.revisions == ["v3.0"]
    ds = datasets.open("someone/numbers", root=root)
    assert (ds.root, len(ds)) == (root, 9)
    assert ds.batch(range(9))["index"].tolist() == list(range(9))
    assert hub.revisions == ["v3.0"]
    hub.is_down()
    assert len(datasets.open("someone/numbers", root=root)) == 9  # it is there now


def test_a_root_keeps_its_commit_and_takes_no_files_of_another(
    hub: DatasetHub, tmp_path: Path
) -> None:
    root = tmp_path / "mine"
    datasets.open("someone/demos", root=root)
    datasets.open("someone/demos", root=root, revision=hub.commit)
    assert hub.revisions == ["v3.0"]
    hub.hold(tmp_path / "remote")
    with refuses(UsageError, "hub.other-download"):
        datasets.open("someone/demos", root=root, revision=hub.commit)
    with refuses(UsageError, "hub.other-download"):
        datasets.open("someone/others", root=root)


def test_a_dataset_of_ones_own_has_no_revisions_and_takes_no_downloads(
    hub: DatasetHub, tmp_path: Path
) -> None:
    root = copied("video3ep", tmp_path / "mine")
    with refuses(UsageError, "dataset.unknown-revision") as refused:
        datasets.open("someone/demos", root=root, revision="v9")
    assert "'v9'" in str(refused.value)
    with refuses(UsageError, "dataset.unknown-revision") as refused:
        datasets.open(root, revision="v9")
    assert "'v9'" in str(refused.value)
    (root / "data/chunk-000/file-000.parquet").unlink()
    with refuses(DatasetError, "dataset.missing-file") as refused:
        datasets.open("someone/demos", root=root)[0]
    assert "file-000.parquet" in str(refused.value)
    assert hub.asked == []


def test_a_revision_is_asked_for_as_it_is(hub: DatasetHub, home: Path) -> None:
    copied("video3ep", home / "someone/demos")
    hub.tags["abc"] = hub.commit
    datasets.open("someone/demos", revision="abc")
    assert hub.revisions == ["abc"]


def test_a_dataset_in_lerobots_home_is_found_by_its_id(hub: DatasetHub, home: Path) -> None:
    copied("video3ep", home / "someone/demos")
    assert datasets.open("someone/demos").root == home / "someone/demos"
    assert hub.asked == []


def test_without_a_network_what_was_downloaded_is_read(hub: DatasetHub) -> None:
    datasets.open("someone/demos")
    hub.is_down()
    assert datasets.open("someone/demos")[0]["task"] == "push the block"
    with refuses(HubUnreachable, "hub.unreachable"):
        datasets.open("someone/others")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["main", "v2.1", "v3.0", "v2.0"], "v3.0"),
        (["main", "v2.0", "v2.1"], "v2.1"),
        (["main", "v3.1", "v2.0", "draft"], "v2.0"),
        (["main", "draft"], "main"),
    ],
)
def test_the_newest_version_that_we_read_is_chosen(names: list[str], chosen: str) -> None:
    assert chosen_revision("someone/demos", names) == chosen


def test_versions_that_we_do_not_read_are_said(hub: DatasetHub) -> None:
    hub.tags = dict.fromkeys(("v4.0", "v1.6"), hub.commit)
    with refuses(UsageError, "dataset.unknown-version") as refused:
        datasets.open("someone/demos")
    assert "--upgrade" in str(refused.value)
    hub.tags = {"v1.6": hub.commit}
    with refuses(UsageError, "dataset.unknown-version"):
        datasets.open("someone/demos")


def test_lerobots_home_is_where_its_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEROBOT_HOME", "HF_LEROBOT_HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert lerobot_home() == Path("~/.cache/huggingface/lerobot").expanduser()
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert lerobot_home() == Path("/x/huggingface/lerobot")
    monkeypatch.setenv("HF_HOME", "/h")
    assert lerobot_home() == Path("/h/lerobot")
    monkeypatch.setenv("HF_LEROBOT_HOME", "/l")
    assert lerobot_home() == Path("/l")
    monkeypatch.setenv("LEROBOT_HOME", "/old")
    with refuses(UsageError, "env.renamed-variable") as refused:
        lerobot_home()
    assert "HF_LEROBOT_HOME" in str(refused.value)
