"""Outputs in the documentation are captured from real runs by scripts/docs_outputs.py."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import pytest
from scripts import docs_outputs, tutorial

from tests.documents import ROOT, all_pages

RATE = re.compile(r"\d\d?\.\d% \[[\d., ]+\] n=\d")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
APPENDICES = {"docs/measurements.md", "CHANGELOG.md"}
"""Pages whose outputs are records of a day."""
EXCERPTS = {
    "docs/guides/cluster.md: random on fake: 40 episodes of 1 task -> outputs/tried",  # needs Ray
    "docs/guides/remote_policy.md: remote random on fake: 10 episodes of 1 task -> run",  # a server
    "docs/guides/sweep.md: run     success [95% interval]  point-0            point-1",
    "docs/guides/train.md: step 15: success 0.0% [0.0, 19.4] n=16",
    "docs/guides/evaluate.md: 71.3% [67.0, 75.3] n=450, 3 diverged, 2 errors "
    "(71.0% to 71.5% if they had counted)",
    "docs/guides/robustness.md: success of the clean episodes 90.0% [78.6, 95.7] n=50",  # random
    "docs/tutorials/evaluate.md: success 97.0% [91.5, 99.0] n=100",
    "README.md: 150 demonstrations, 11,320 frames, 13.6 s in this session",
}
"""Blocks with parts of an output, or of commands that need other processes: copied by hand."""


def test_an_output_with_a_success_rate_is_a_captured_one() -> None:
    typed = [
        f"{page.relative_to(ROOT)}: {body.splitlines()[0]}"
        for page in all_pages()
        if str(page.relative_to(ROOT)) not in APPENDICES
        for language, body in FENCE.findall(page.read_text(encoding="utf-8"))
        if language == "text" and RATE.search(body)
        if f"{page.relative_to(ROOT)}: {body.splitlines()[0]}" not in EXCERPTS
    ]
    assert typed == []


def test_commands_run_in_one_folder_and_their_output_replaces_the_old() -> None:
    page = "text\n\n```console\n$ echo one > file\nold\n$ cat \\\n  file\nold\n```\nmore\n"
    wanted = "text\n\n```console\n$ echo one > file\n$ cat \\\n  file\none\n```\nmore\n"
    assert docs_outputs.with_outputs(page) == wanted


def test_a_command_that_crashes_ends_the_script() -> None:
    with pytest.raises(docs_outputs.CommandFailed):
        docs_outputs.with_outputs("```console\n$ kill -9 $$\n```\n")


def test_a_command_is_interrupted_where_the_page_says_so() -> None:
    trap, said = "trap 'kill $!; echo stopped; exit 130' INT", ""
    for wait_s in (1, 10, 30):  # a busy machine may not have come to the trap yet
        page = f"```console\n$ {trap}; sleep 60 & wait  # Ctrl-C after {wait_s} s\n```\n"
        with contextlib.suppress(docs_outputs.CommandFailed):
            said = docs_outputs.with_outputs(page)
            break
    assert "\nstopped\n" in said


def test_a_page_about_a_plug_in_is_run_beside_its_file() -> None:
    page = "```python\nx = 1\n```\n```python\nmore\n```\n```console\n$ cat pack/one.py\n```\n"
    assert "$ cat pack/one.py\nx = 1\n```" in docs_outputs.with_outputs(page, "pack/one.py")


def test_of_progress_lines_the_last_stays() -> None:
    shown = ["1/3  success n/a", "3/3  success 100.0%", "", "done"]
    assert docs_outputs.without_progress(shown) == shown[1:]


def test_a_check_finds_another_rate_and_ignores_other_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ echo rate 97.0% in 0:12, 5 steps/s\nrate 97.0% in 0:07, 1,194 steps/s\n```\n"
    )
    assert docs_outputs.main(["--check", str(page)]) == 0
    page.write_text(page.read_text().replace("\nrate 97.0%", "\nrate 96.0%"))
    assert docs_outputs.main(["--check", str(page)]) == 1


def test_of_a_recordings_progress_lines_the_last_stays() -> None:
    shown = ["recorded 1/3  0 not kept", "recorded 3/3  0 not kept", "task  kept"]
    assert docs_outputs.without_progress(shown) == shown[1:]
    robot = ["recording episode 1 of 2", "recording episode 2 of 2", "2 episodes, 9 frames"]
    assert docs_outputs.without_progress(robot) == robot[1:]


def test_the_tutorial_shows_the_commands_of_make_tutorial() -> None:
    page = (ROOT / "docs/tutorials/record_train_evaluate.md").read_text(encoding="utf-8")
    page = re.sub(r"  # Ctrl-C after \d+ s$", "", page.replace("\\\n", " "), flags=re.MULTILINE)
    lines = re.findall(r"^(?:\$ )?proctor (.*)$", page, re.MULTILINE)
    expected = tutorial.commands(Path("tutorial"))
    assert [words for words in map(shlex.split, lines) if words in expected] == expected
