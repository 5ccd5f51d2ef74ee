"""A dataset of the Hub: the version that we read, only the files that are needed."""

from __future__ import annotations

import fnmatch
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from proctor import datasets
from proctor.datasets.source import chosen_revision, lerobot_home
from proctor.errors import DatasetError, HubUnreachable, UsageError
from tests.refusals import refuses
from tests.unit.datasets.making import change, copied, make_numbers

COMMIT = "0123abcd" * 5


@dataclass
class FakeHub:
    """Gives the files of a folder as ``snapshot_download`` would, and remembers which."""

    content: Path
    tags: tuple[str, ...] = ("v3.0",)
    is_up: bool = True
    asked: list[str | None] = field(default_factory=list)
    given: set[str] = field(default_factory=set)

    def list_repo_refs(self, repo: str, repo_type: str) -> Any:
        if not self.is_up:
            raise OSError("no route to host")
        assert repo_type == "dataset"
        tags = [SimpleNamespace(name=name) for name in self.tags]
        return SimpleNamespace(branches=[SimpleNamespace(name="main")], tags=tags)

    def snapshot_download(
        self,
        repo: str,
        revision: str,
        allow_patterns: list[str] | None,
        repo_type: str,
        cache_dir: Path | None = None,
        local_dir: Path | None = None,
        local_files_only: bool = False,
    ) -> str:
        assert repo_type == "dataset"
        self.asked.append(revision)
        if cache_dir is not None:
            folder = cache_dir / f"datasets--{repo.replace('/', '--')}/snapshots" / COMMIT
        else:
            assert local_dir is not None
            folder = local_dir
        if local_files_only or not self.is_up:
            if revision != "v3.0" or not folder.exists():
                raise LocalEntryNotFoundError("nothing here")
            return str(folder)
        if local_dir is not None:
            noted = folder / ".cache/huggingface/download/meta/info.json.metadata"
            noted.parent.mkdir(parents=True, exist_ok=True)
            noted.write_text(f"{COMMIT}\netag\n0\n")
        for path in sorted(self.content.rglob("*")):
            name = path.relative_to(self.content).as_posix()
            wanted = allow_patterns is None or any(fnmatch.fnmatch(name, p) for p in allow_patterns)
            if path.is_file() and wanted:
                self.given.add(name)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, folder / name)
        return str(folder)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LEROBOT_HOME", raising=False)
    return tmp_path / "home"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> FakeHub:
    found = FakeHub(copied("video3ep", tmp_path / "remote"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", found.snapshot_download)
    monkeypatch.setattr(
        "huggingface_hub.HfApi", lambda: SimpleNamespace(list_repo_refs=found.list_repo_refs)
    )
    return found


def test_a_dataset_of_the_hub_is_downloaded_once_at_one_commit(hub: FakeHub, home: Path) -> None:
    ds = datasets.open("someone/demos")
    assert ds.root == home / "hub/datasets--someone--demos/snapshots" / COMMIT
    assert hub.asked == ["v3.0", COMMIT]
    assert len(ds.batch([0, 27])["task"]) == 2
    assert ds.interface.name == "someone/demos"
    datasets.open("someone/demos")
    assert hub.asked == ["v3.0", COMMIT, "v3.0"]  # of the files, nothing was missing


def test_only_the_files_of_the_chosen_episodes_are_downloaded(hub: FakeHub, tmp_path: Path) -> None:
    hub.content = make_numbers(tmp_path / "numbers", [3, 2, 4, 1, 2])
    ds = datasets.open("someone/numbers", episodes=[2])
    assert ds.batch(range(4))["index"].tolist() == [5, 6, 7, 8]
    assert {name for name in hub.given if name.startswith("data/")} == {
        "data/chunk-000/file-001.parquet"
    }
    with refuses(DatasetError, "dataset.unknown-episode") as refused:
        datasets.open("someone/numbers", episodes=[9])
    assert "episode 9" in str(refused.value)


def test_names_with_brackets_are_no_patterns(hub: FakeHub, tmp_path: Path) -> None:
    hub.content = make_numbers(tmp_path / "numbers", [3])
    (hub.content / "data/chunk-000").rename(hub.content / "data/[c]-000")
    change(hub.content, data_path="data/[c]-{chunk_index:03d}/file-{file_index:03d}.parquet")
    assert datasets.open("someone/numbers", episodes=[0])[2]["index"] == 2


def test_a_root_takes_the_download_and_what_is_missing_of_it_later(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.content = make_numbers(tmp_path / "numbers", [3, 2, 4])
    root = tmp_path / "mine"
    assert len(datasets.open("someone/numbers", root=root, episodes=[0])) == 3
    assert hub.asked == ["v3.0", "v3.0"]
    ds = datasets.open("someone/numbers", root=root)
    assert (ds.root, len(ds)) == (root, 9)
    assert ds.batch(range(9))["index"].tolist() == list(range(9))
    assert hub.asked == ["v3.0", "v3.0", COMMIT]
    hub.is_up = False
    assert len(datasets.open("someone/numbers", root=root)) == 9  # it is there now


def test_a_root_of_another_revision_is_brought_to_that(hub: FakeHub, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    datasets.open("someone/demos", root=root)
    datasets.open("someone/demos", root=root, revision=COMMIT)
    assert hub.asked == ["v3.0", "v3.0"]
    datasets.open("someone/demos", root=root, revision="other")
    assert hub.asked[2:] == ["other"]


def test_a_dataset_of_ones_own_has_no_revisions_and_takes_no_downloads(
    hub: FakeHub, tmp_path: Path
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


def test_a_revision_is_asked_for_as_it_is(hub: FakeHub, home: Path) -> None:
    copied("video3ep", home / "someone/demos")
    datasets.open("someone/demos", revision="abc")
    assert hub.asked[0] == "abc"


def test_a_dataset_in_lerobots_home_is_found_by_its_id(hub: FakeHub, home: Path) -> None:
    copied("video3ep", home / "someone/demos")
    assert datasets.open("someone/demos").root == home / "someone/demos"
    assert hub.asked == []


def test_without_a_network_what_was_downloaded_is_read(hub: FakeHub) -> None:
    datasets.open("someone/demos")
    hub.is_up = False
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


def test_versions_that_we_do_not_read_are_said(hub: FakeHub) -> None:
    hub.tags = ("v4.0", "v1.6")
    with refuses(UsageError, "dataset.unknown-version") as refused:
        datasets.open("someone/demos")
    assert "--upgrade" in str(refused.value)
    hub.tags = ("v1.6",)
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
