"""Links in our folders: nothing is written through one, and none leads a verb out of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proctor.datasets import hub
from proctor.datasets.check import check, repair
from proctor.datasets.edit import operations
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import in_place_destination, new_destination
from proctor.datasets.edit.split import split_into
from proctor.datasets.writer import DatasetWriter
from proctor.errors import UsageError
from proctor.rl.actor.pending_transitions import PendingFolder
from proctor.runs.path_checks import refuse_blocked_paths
from proctor.system.links import leaving_links, refuse_links
from tests.refusals import refuses
from tests.unit.datasets.making import make_numbers


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_numbers(tmp_path / "set", [4, 3])


def _to_a_file(root: Path) -> Path:
    link = root / "notes.txt"
    link.symlink_to(root.with_name("private"))
    return link


def _to_the_environment(root: Path) -> Path:
    link = root / "meta" / "about.txt"
    link.symlink_to("/proc/self/environ")
    return link


def _in_circles(root: Path) -> Path:
    link = root / "a"
    link.symlink_to(".")
    (root / "b").symlink_to(".")
    return link


def _of_a_data_file(root: Path) -> Path:
    link = root / "data/chunk-000/file-000.parquet"
    link.rename(root.with_name("private"))
    link.symlink_to(root.with_name("private"))
    return link


LINKS = [_to_a_file, _to_the_environment, _in_circles, _of_a_data_file]


def _copy(root: Path) -> None:
    edit(root, new_destination(root.with_name("out")), lambda s: operations.delete(s, [0]))


def _edit_in_place(root: Path) -> None:
    edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))


def _split(root: Path) -> None:
    split_into(root, {"a": [0], "b": [1]}, root.with_name("out"))


def _push(root: Path) -> None:
    hub.push(root, "me/set", hub=SimpleNamespace())


def _resume(root: Path) -> None:
    DatasetWriter.resume(root)


@pytest.mark.parametrize("verb", [_copy, _edit_in_place, _split, _push, _resume, repair])
@pytest.mark.parametrize("make_link", LINKS)
def test_a_link_out_of_a_dataset_is_refused_by_every_verb(
    root: Path, make_link: Callable[[Path], Path], verb: Callable[[Path], Any]
) -> None:
    root.with_name("private").write_text("PRIVATE")
    make_link(root)
    before = sorted(root.parent.rglob("*"))
    code = "path.link-outside" if verb in (_copy, _split, _push) else "path.link"
    if verb is _edit_in_place and make_link is _to_the_environment:
        code = "dataset.shared-download"  # as any link in meta/
    with refuses(UsageError, code):
        verb(root)
    assert [path for path in sorted(root.parent.rglob("*")) if path.name != "out"] == before


@pytest.mark.parametrize("make_link", LINKS)
def test_a_check_names_a_link_out_of_the_dataset(
    root: Path, make_link: Callable[[Path], Path]
) -> None:
    link = make_link(root)
    named = [found.where for found in check(root).findings if found.kind == "files.link"]
    assert link.relative_to(root).as_posix() in named


def test_a_file_link_that_stays_inside_and_a_download_of_the_hub_are_copied(root: Path) -> None:
    (root / "notes.txt").write_text("note")
    (root / "more.txt").symlink_to("notes.txt")
    blobs = root.with_name("repo") / "blobs"
    snapshot = blobs.with_name("snapshots") / "1234"
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(root.rglob("*"))):
        if path.is_file():
            target = snapshot / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            (blobs / str(number)).write_bytes(path.read_bytes())
            target.symlink_to(blobs / str(number))
    for source in (root, snapshot):
        out = new_destination(root.with_name(f"{source.name}_out"))
        edit(source, out, lambda s: operations.delete(s, [0]))
        assert (out.root / "more.txt").read_text() == "note"
        assert not (out.root / "more.txt").is_symlink()


def test_a_link_to_itself_is_found_and_a_search_ends(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "up").symlink_to("..")
    assert {link.name for link in leaving_links(tmp_path)} == {"self", "up"}


def test_nothing_is_written_through_a_link_into_a_recording(root: Path, tmp_path: Path) -> None:
    victim = tmp_path / "thesis.txt"
    victim.write_bytes(b"T" * 20_000)
    levels = root / ".proctor/levels/observation.image.u32"
    levels.parent.mkdir(parents=True)
    levels.symlink_to(victim)
    with refuses(UsageError, "path.link"):
        DatasetWriter.resume(root)
    assert victim.read_bytes() == b"T" * 20_000


@pytest.mark.parametrize(
    "use", [refuse_links, refuse_blocked_paths, lambda folder: PendingFolder(folder, "actor")]
)
def test_folders_with_links_are_not_written_to(tmp_path: Path, use: Callable[[Path], Any]) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "log").symlink_to("/etc/hostname")
    with refuses(UsageError, "path.link"):
        use(tmp_path)
