"""Output flags of ``proctor report`` and ``proctor compare`` never replace a run's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from proctor.cli import main
from proctor.errors import UsageError
from proctor.runs.own_files import check_outputs
from tests.refusals import refuses
from tests.run_folders import eight_episodes, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "other"):
        write_run(tmp_path / name, eight_episodes())
    (tmp_path / "training" / "checkpoints").mkdir(parents=True)
    (tmp_path / "training" / "train.json").write_text("{}")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "journal").symlink_to("a/episodes.jsonl")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        "a/run.json",
        "a/../b/episodes.jsonl",
        "link/states.jsonl",
        "journal",
        "other/.lock",
        "other/videos/point_0/episode_0.json",
        "training/train.json",
        "training/checkpoints/config.json",
    ],
)
def test_an_output_never_replaces_data_of_a_run_or_a_training(folder: Path, name: str) -> None:
    with refuses(UsageError, "path.own-file"):
        check_outputs({"--json": folder / name})
    before = contents(folder)
    runs = [str(folder / "a"), str(folder / "b")]
    for flag in ("json", "html"):
        assert main(["compare", *runs, f"--{flag}={folder / name}"]) == 2
    for flag in ("csv", "markdown", "output"):
        assert main(["report", runs[0], f"--{flag}={folder / name}"]) == 2
    assert contents(folder) == before


def test_a_card_never_replaces_the_record_of_its_run(folder: Path) -> None:
    before = contents(folder)
    assert main(["report", str(folder / "a"), f"--card={folder / 'a' / 'run'}"]) == 2
    assert contents(folder) == before


def test_two_output_flags_never_name_the_same_file(folder: Path) -> None:
    same, card, before = folder / "same.json", folder / "b" / "card.json", contents(folder)
    run, runs = str(folder / "a"), [str(folder / "a"), str(folder / "b")]
    assert main(["report", run, f"--csv={same}", f"--output={folder}/a/../same.json"]) == 2
    assert main(["report", run, f"--markdown={same}", f"--card={same}"]) == 2
    assert main(["compare", *runs, f"--json={same}", f"--html={same}"]) == 2
    assert main(["compare", *runs, f"--json={folder / 'b' / 'compare.html'}"]) == 2
    assert contents(folder) == before
    assert main(["report", str(folder / "b"), "--card"]) == 0
    before = contents(folder)
    assert main(["compare", str(card), run, f"--json={card}"]) == 2
    assert contents(folder) == before


def test_pages_and_tables_beside_the_data_are_written_again(folder: Path) -> None:
    words = ["report", str(folder / "a"), "--csv", "--markdown", "--card"]
    page = f"--output={folder / 'a' / 'report.html'}"
    assert main([*words, page]) == main([*words, page]) == 0
    assert main(["compare", str(folder / "a"), str(folder / "b")]) == 0
    assert main(["report", str(folder / "a"), f"--csv={folder / 'run.json'}"]) == 0  # no run's own
