"""``proctor data info``: whole when piped, cut to a terminal's width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from proctor.cli import main
from proctor.report.dataset.summary import read_summary
from proctor.report.dataset.tables import TableSize, duration, size_text, summary_tables
from tests.unit.datasets.damage import (
    EPISODES,
    INFO,
    MOVIE,
    TASKS,
    VIDEO,
    as_v2,
    column_with,
    copy_of,
    entry,
    json_with,
    removed,
)


def printed(root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["data", "info", str(root)]) == 0
    return capsys.readouterr().out.splitlines()


def test_everything_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [" ".join(line.split()) for line in printed(VIDEO, capsys)]
    for said in (
        "format v3.0, 10 fps, robot toy",
        "episodes 3, 7 to 12 frames each (median 9)",
        "frames 28 (2.8 s)",
        "observation.state float32 3 x, y, grip",
        "observation.images.top 96x64 av1 yuv420p 1 1.74 kB",
        "2 push the block",
        "action dx -2.365 -2.365 -0.243 0.9965 1.802 1.802",
    ):
        assert said in lines


@pytest.mark.parametrize("version", ["v2.1", "v2.0"])
def test_older_versions_have_the_same_to_say(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        " ".join(line.split()) for line in printed(as_v2(VIDEO, tmp_path / "o", version), capsys)
    ]
    assert f"format {version}, 10 fps, robot toy" in lines
    assert any(line.startswith("action dx -2.365") for line in lines)


def test_a_terminal_is_not_too_narrow_and_lists_are_cut(tmp_path: Path) -> None:
    def longer(said: dict[str, Any]) -> None:
        said["features"]["action"]["names"] = ["a very long name of a joint" * 3, "dy"]

    facts = read_summary(copy_of(VIDEO, tmp_path, json_with(INFO, longer)))
    console = Console(width=60, force_terminal=True, color_system=None)
    with console.capture() as shown:
        for table in summary_tables(facts, TableSize(60, 1)):
            console.print(table)
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= 60
    assert any("and 1 more tasks" in line for line in lines)
    assert any("-1.32" in line and "1.042" in line for line in lines), "numbers are whole"


def test_a_video_that_is_gone_is_said_and_markup_is_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of(
        VIDEO, tmp_path, removed(MOVIE), column_with(TASKS, "task", entry(0, "[red]\x1b[2J")),
        column_with(EPISODES, "tasks", entry(0, ["[red]\x1b[2J"])),
    )  # fmt: skip
    text = "\n".join(printed(root, capsys))
    assert "missing" in text
    assert "[red]\\x1b[2J" in text


@pytest.mark.parametrize("words", [[], ["a", "b"], ["here", "--fast"]])
def test_bad_words_get_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_sizes_and_times_are_short() -> None:
    assert [size_text(n) for n in (0, 999, 1744, 2_500_000)] == [
        "0 bytes",
        "999 bytes",
        "1.74 kB",
        "2.5 MB",
    ]
    assert [duration(s) for s in (2.8, 61, 7322)] == ["2.8 s", "1 min 1 s", "2 h 2 min"]
