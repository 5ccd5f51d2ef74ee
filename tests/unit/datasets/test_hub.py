"""Datasets to the Hub and from it: a fake Hub that keeps commits as folders, no network."""

from __future__ import annotations

import fnmatch
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proctor.cli import main
from proctor.datasets import hub as hub_module
from proctor.datasets.edit import operations
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import in_place_destination
from proctor.datasets.format.info_file import read_info
from proctor.datasets.hub import pull, push
from proctor.errors import UsageError
from tests.refusals import refuses

GOLDEN = Path(__file__).parents[2] / "golden" / "data" / "datasets" / "video3ep"


@dataclass
class FakeHub:
    """One repository: its commits, newest last, and its tags."""

    folder: Path
    private: bool | None = None
    tags: dict[str, str] = field(default_factory=dict)
    commits: list[dict[str, bytes]] = field(default_factory=lambda: [{}])

    def create_repo(
        self, repo: str, *, private: bool | None, exist_ok: bool, repo_type: str
    ) -> str:
        assert exist_ok
        assert repo_type == "dataset"
        self.private = private
        return f"https://hub/datasets/{repo}"

    def upload_folder(self, *, folder_path: Path, **said: Any) -> Any:
        gone = [n for n in self.commits[-1] if matches(n, said["delete_patterns"])]
        files = {name: data for name, data in self.commits[-1].items() if name not in gone}
        for path in folder_path.rglob("*"):
            name = path.relative_to(folder_path).as_posix()
            if path.is_file() and not matches(name, said["ignore_patterns"]):
                files[name] = path.read_bytes()
        return self._commit(files)

    def upload_file(self, *, path_or_fileobj: bytes, path_in_repo: str, **_: Any) -> Any:
        return self._commit(self.commits[-1] | {path_in_repo: path_or_fileobj})

    def _commit(self, files: dict[str, bytes]) -> Any:
        self.commits.append(files)
        return SimpleNamespace(oid=str(len(self.commits) - 1))

    def file_exists(self, repo: str, name: str, *, repo_type: str) -> bool:
        return name in self.commits[-1]

    def list_repo_refs(self, repo: str, *, repo_type: str) -> Any:
        tags = [SimpleNamespace(name=name) for name in self.tags]
        return SimpleNamespace(branches=[SimpleNamespace(name="main")], tags=tags)

    def delete_tag(self, repo: str, *, tag: str, repo_type: str) -> None:
        del self.tags[tag]

    def create_tag(self, repo: str, *, tag: str, revision: str, repo_type: str) -> None:
        assert tag not in self.tags  # the Hub refuses to move one
        self.tags[tag] = revision

    def snapshot_download(
        self, repo: str, *, revision: str, local_dir: Path, ignore_patterns: Any, repo_type: str
    ) -> None:
        for name, data in self.commits[int(self.tags.get(revision, -1))].items():
            if not matches(name, ignore_patterns or []):
                (local_dir / name).parent.mkdir(parents=True, exist_ok=True)
                (local_dir / name).write_bytes(data)
        (local_dir / ".cache").mkdir(exist_ok=True)


def matches(name: str, patterns: Any) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "demos"))


@pytest.fixture
def hub(tmp_path: Path) -> FakeHub:
    return FakeHub(tmp_path)


def test_what_is_pushed_is_pulled_by_its_version_tag(
    root: Path, tmp_path: Path, hub: FakeHub
) -> None:
    (root / "images").mkdir()
    (root / "images" / "left.png").write_bytes(b"unfinished")
    (root / ".lock").touch()
    assert push(root, "me/demos", private=True, hub=hub) == "https://hub/datasets/me/demos"
    assert hub.private
    assert hub.tags == {"v3.0": "2"}  # of the newest commit, the card's
    info = pull("me/demos", tmp_path / "home" / "demos", hub=hub)
    assert info == read_info(root)
    pulled, original = names(tmp_path / "home" / "demos"), names(GOLDEN)
    assert pulled == original | {"README.md"}
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["demos"]


def test_the_tag_moves_and_files_that_are_gone_go(root: Path, hub: FakeHub) -> None:
    (root / "videos/observation.images.top/chunk-000/file-001.mp4").write_bytes(b"more")
    push(root, "me/demos", hub=hub)
    (root / "videos/observation.images.top/chunk-000/file-001.mp4").unlink()
    edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))
    hub.commits[-1]["notes.txt"] = b"of somebody else"
    push(root, "me/demos", hub=hub)
    assert hub.tags == {"v3.0": str(len(hub.commits) - 1)}
    assert "videos/observation.images.top/chunk-000/file-001.mp4" not in hub.commits[-1]
    assert hub.commits[-1]["notes.txt"] == b"of somebody else"


def test_a_card_is_made_where_there_is_none_and_kept_where_there_is(
    root: Path, hub: FakeHub
) -> None:
    push(root, "me/demos", hub=hub)
    card = hub.commits[-1]["README.md"].decode()
    for words in ("- LeRobot", "- robotics", "data/*/*.parquet", "3\nepisodes, 28 frames"):
        assert words in card
    (root / "README.md").write_text("mine")
    push(root, "me/demos", hub=hub)
    assert hub.commits[-1]["README.md"] == b"mine"


def test_an_older_version_is_pulled_where_there_is_no_other(tmp_path: Path, hub: FakeHub) -> None:
    hub.tags = {"v2.1": "1", "v1.6": "0", "v9.0": "0"}
    hub.commits.append({"meta/info.json": (GOLDEN / "meta/info.json").read_bytes()})
    assert pull("me/demos", tmp_path / "out", hub=hub).total_episodes == 3


@pytest.mark.parametrize(("tags", "version"), [
    ({"v1.6": "0"}, "v1.6"),
    ({"v9.0": "0"}, "v9.0"),
])  # fmt: skip
def test_versions_that_nobody_here_reads_are_refused(
    tmp_path: Path, hub: FakeHub, tags: dict[str, str], version: str
) -> None:
    hub.tags = tags
    with refuses(UsageError, "dataset.unknown-version") as refused:
        pull("me/demos", tmp_path / "out", hub=hub)
    assert version in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_and_an_id_that_is_none_are_refused(root: Path, hub: FakeHub) -> None:
    with refuses(UsageError, "dataset.exists"):
        pull("me/demos", root, hub=hub)
    with refuses(UsageError, "hub.invalid-id") as refused:
        push(root, "demos", hub=hub)
    assert "'demos'" in str(refused.value)


def test_push_and_pull_are_commands(
    root: Path,
    tmp_path: Path,
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(hub_module, "hub_api", lambda: hub)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    assert main(["data", "push", str(root), "me/demos", "--videos=false"]) == 0
    assert main(["data", "pull", "me/demos"]) == 0
    out = capsys.readouterr().out
    assert out == f"https://hub/datasets/me/demos\n{tmp_path}/home/me/demos: v3.0, 3 episodes\n"
    assert not (tmp_path / "home/me/demos/videos").exists()
    old = ["--operation.type=delete_episodes", "--operation.episode_indices=[0]"]
    words = [f"--root={root}", "--repo_id=me/demos", "--push_to_hub=true"]
    assert main(["data", "edit", *old, *words]) == 0
    assert b'"total_episodes": 2' in hub.commits[-1]["meta/info.json"]


def test_no_way_to_the_hub_is_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import HfApi

    monkeypatch.setattr(hub_module, "hub_api", lambda: HfApi(endpoint="http://127.0.0.1:9"))
    for words, lost in (
        (["push", str(root), "me/demos"], "nothing was uploaded"),
        (["pull", "me/demos", f"--root={root}-new"], "what was downloaded before is kept"),
    ):
        assert main(["data", *words]) == 2
        err = capsys.readouterr().err
        assert "me/demos: the Hub cannot be reached" in err
        assert lost in err
        assert err.count("\n") == 1
