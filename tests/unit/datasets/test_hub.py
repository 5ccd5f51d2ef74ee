"""Datasets to the Hub and from it: the real client against a Hub on loopback."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.datasets.edit import operations
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import in_place_destination
from proctor.datasets.format.info_file import read_info
from proctor.datasets.hub import not_pushed, pull, push
from proctor.errors import UsageError
from tests.loopback_hub import LoopbackHub, Request, loopback_hub
from tests.refusals import refuses

GOLDEN = Path(__file__).parents[2] / "golden" / "data" / "datasets" / "video3ep"


def names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "demos"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with loopback_hub(tmp_path / "machine", monkeypatch) as made:
        yield made


def test_what_is_pushed_is_pulled_by_its_version_tag(
    root: Path, tmp_path: Path, hub: LoopbackHub
) -> None:
    (root / "images").mkdir()
    (root / "images" / "left.png").write_bytes(b"unfinished")
    (root / ".lock").touch()
    assert push(root, "me/demos", private=True) == f"{hub.endpoint}/datasets/me/demos"
    assert hub.private
    assert hub.tags == {"v3.0": hub.commit}  # the card's
    assert len(hub.commits) == 3
    info = pull("me/demos", tmp_path / "home" / "demos")
    assert info == read_info(root)
    pulled, original = names(tmp_path / "home" / "demos"), names(GOLDEN)
    assert pulled == original | {"README.md"}
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["demos"]


def test_the_tag_moves_and_files_that_are_gone_go(root: Path, hub: LoopbackHub) -> None:
    (root / "videos/observation.images.top/chunk-000/file-001.mp4").write_bytes(b"more")
    push(root, "me/demos")
    (root / "videos/observation.images.top/chunk-000/file-001.mp4").unlink()
    edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))
    hub.commits[-1]["notes.txt"] = b"of somebody else"
    push(root, "me/demos")
    assert hub.tags == {"v3.0": hub.commit}
    assert "videos/observation.images.top/chunk-000/file-001.mp4" not in hub.commits[-1]
    assert hub.commits[-1]["notes.txt"] == b"of somebody else"


def test_a_card_is_made_where_there_is_none_and_kept_where_there_is(
    root: Path, hub: LoopbackHub
) -> None:
    push(root, "me/demos")
    card = hub.commits[-1]["README.md"].decode()
    for words in ("- LeRobot", "- robotics", "data/*/*.parquet", "3\nepisodes, 28 frames"):
        assert words in card
    (root / "README.md").write_text("mine")
    push(root, "me/demos")
    assert hub.commits[-1]["README.md"] == b"mine"


def test_only_the_format_and_the_card_are_pushed_and_others_are_named(
    root: Path, hub: LoopbackHub
) -> None:
    others = [".env", "meta/.env", "notes/.git-credentials", "outputs.log", "meta/notes.json"]
    others += ["data/chunk-000/.file-000.parquet", "notes/a.txt"]
    expected = names(root) | {"README.md"}
    for name in (*others, "README.md"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("HF_TOKEN=secret")
    (root / ".lock").touch()
    push(root, "me/demos")
    assert hub.commits[-1].keys() == expected
    note = not_pushed(root)
    assert note is not None
    assert ".env, data/chunk-000/.file-000.parquet, meta/.env" in note
    assert ".lock" not in note

    push(root, "me/demos", include=["notes/*", ".env"])
    assert hub.commits[-1].keys() == expected | {"notes/a.txt", ".env"}


def test_an_older_version_is_pulled_where_there_is_no_other(
    tmp_path: Path, hub: LoopbackHub
) -> None:
    hub.tags = {"v2.1": f"{1:040x}", "v1.6": f"{0:040x}", "v9.0": f"{0:040x}"}
    hub.commits.append({"meta/info.json": (GOLDEN / "meta/info.json").read_bytes()})
    assert pull("me/demos", tmp_path / "out").total_episodes == 3


@pytest.mark.parametrize(("tags", "version"), [
    ({"v1.6": "0" * 40}, "v1.6"),
    ({"v9.0": "0" * 40}, "v9.0"),
])  # fmt: skip
def test_versions_that_nobody_here_reads_are_refused(
    tmp_path: Path, hub: LoopbackHub, tags: dict[str, str], version: str
) -> None:
    hub.tags = tags
    with refuses(UsageError, "dataset.unknown-version") as refused:
        pull("me/demos", tmp_path / "out")
    assert version in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_exists_and_an_id_that_is_none_are_refused(
    root: Path, hub: LoopbackHub
) -> None:
    with refuses(UsageError, "dataset.exists"):
        pull("me/demos", root)
    with refuses(UsageError, "hub.invalid-id") as refused:
        push(root, "demos")
    assert "'demos'" in str(refused.value)


def test_push_and_pull_are_commands(
    root: Path,
    tmp_path: Path,
    hub: LoopbackHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    assert main(["data", "push", str(root), "me/demos", "--videos=false"]) == 0
    assert main(["data", "pull", "me/demos"]) == 0
    out = capsys.readouterr().out
    assert out == f"{hub.endpoint}/datasets/me/demos\n{tmp_path}/home/me/demos: v3.0, 3 episodes\n"
    assert not (tmp_path / "home/me/demos/videos").exists()
    old = ["--operation.type=delete_episodes", "--operation.episode_indices=[0]"]
    words = [f"--root={root}", "--repo_id=me/demos", "--push_to_hub=true"]
    assert main(["data", "edit", *old, *words]) == 0
    assert b'"total_episodes": 2' in hub.commits[-1]["meta/info.json"]


def test_no_way_to_the_hub_is_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for words, lost in (
        (["push", str(root), "me/demos"], "nothing was uploaded"),
        (["pull", "me/demos", f"--root={root}-new"], "what was downloaded before is kept"),
    ):
        assert main(["data", *words]) == 2
        err = capsys.readouterr().err
        assert "me/demos: the Hub cannot be reached" in err
        assert lost in err
        assert err.count("\n") == 1


def dies_at(name: str) -> Callable[[Request, str], bool]:
    return lambda request, path: path.endswith(name) and request.reply(404)


def test_a_pull_of_another_repository_or_commit_takes_nothing_of_an_unfinished_one(
    root: Path, tmp_path: Path, hub: LoopbackHub
) -> None:
    (root / "meta" / "only_in_one.txt").write_text("1")
    hub.hold(root)
    hub.hook = dies_at("tasks.parquet")
    out = tmp_path / "out"
    for repo in ("me/one", "me/two"):
        with refuses(UsageError, "hub.unreachable"):
            pull(repo, out)
    (left,) = tmp_path.glob(".out.*")
    assert "only_in_one.txt" in {path.name for path in left.rglob("*")}
    hub.hook = None
    (root / "meta" / "only_in_one.txt").unlink()
    hub.hold(root)
    pull("me/two", out)
    assert names(out) == names(root)
    assert not list(tmp_path.glob(".out.*"))


def test_an_unfinished_pull_continues_with_the_files_that_are_missing(
    root: Path, tmp_path: Path, hub: LoopbackHub
) -> None:
    hub.hold(root)
    hub.hook = dies_at("tasks.parquet")
    with refuses(UsageError, "hub.unreachable"):
        pull("me/one", tmp_path / "out")
    hub.hook = None
    hub.asked.clear()
    pull("me/one", tmp_path / "out")
    assert len([path for _, path, _ in hub.asked if "resolve" in path]) < len(names(root))


def tagged(root: Path, hub: LoopbackHub) -> str:
    """Push once, so that there is a tag; return its commit."""
    push(root, "me/demos")
    return hub.tags["v3.0"]


def test_a_push_whose_tag_the_hub_refuses_leaves_the_tag_where_it_was(
    root: Path, hub: LoopbackHub
) -> None:
    before = tagged(root, hub)
    (root / "notes.txt").write_text("more")
    hub.hook = lambda request, path: (
        "/tag/" in path and request.command == "POST" and request.reply(500)
    )
    with refuses(UsageError, "hub.tag-not-moved"):
        push(root, "me/demos")
    assert hub.tags == {"v3.0": before}


@pytest.mark.parametrize("failures", [1, 3])
def test_a_push_that_fails_between_two_tags_puts_one_back(
    root: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    before = tagged(root, hub)
    (root / "notes.txt").write_text("more")
    left = [failures]

    def fails_after_the_removal(request: Request, path: str) -> bool:
        if "/tag/" not in path or request.command != "POST" or hub.tags or not left[0]:
            return False
        left[0] -= 1
        return request.reply(500)

    hub.hook = fails_after_the_removal
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    if failures == 1:
        push(root, "me/demos")
        assert hub.tags == {"v3.0": hub.commit}
    else:
        with refuses(UsageError, "hub.tag-not-moved"):
            push(root, "me/demos")
        assert hub.tags == {"v3.0": before}
