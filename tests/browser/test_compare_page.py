"""The comparison page in Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.report.compare.comparison import Criteria, compare_all
from proctor.report.compare.page import write_compare_page
from proctor.report.run.run import load_run
from proctor.runs.folder import RunRecord
from proctor.runs.journal import EpisodeRecord
from proctor.runs.paths import RecordedPath
from proctor.types import Outcome
from tests.browser.test_report_page import (
    TINY_VIDEO,
    background,
    click,
    column,
    sideways_overflow,
    texts,
)
from tests.run_folders import RECORD, episode, infected, write_run

pytestmark = pytest.mark.browser

WON, LOST = Outcome.SUCCESS, Outcome.FAILURE
OpenPage = Callable[..., Any]


def rows_of(*tasks: list[Outcome]) -> list[EpisodeRecord]:
    return [
        episode(task_id, index, outcome)
        for task_id, outcomes in enumerate(tasks)
        for index, outcome in enumerate(outcomes)
    ]


OF_A = rows_of([WON] * 10, [LOST, WON, WON, LOST])
OF_B = rows_of([WON] + [LOST] * 9, [WON, WON, LOST, LOST])


def film(folder: Path, row: EpisodeRecord) -> None:
    video = folder / row.video
    video.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(TINY_VIDEO, video)


def write(
    folder: Path, *runs: list[EpisodeRecord], record: RunRecord = RECORD, paired: bool = True
) -> Path:
    """Write runs named a, b, c ... and the page that compares them."""
    loaded = [
        load_run(write_run(folder / name, rows, record))
        for name, rows in zip("abc", runs, strict=False)
    ]
    return write_compare_page(loaded, compare_all(loaded, Criteria(paired=paired)))


def test_the_headline_says_in_words_what_changed(tmp_path: Path, open_page: OpenPage) -> None:
    browser = open_page(write(tmp_path, OF_A, OF_B))
    said = texts(browser, ".headline")[0]
    assert "B is worse by 64.3 points, statistically significant (p=0.012)" in said
    assert "B − A −64.3 [" in said
    assert "95% interval, p=0.012" in said
    assert "85.7% [60.1, 96.0] 12/14" in said
    assert "10 · 1" in said


def test_tasks_start_with_the_worst_change_flagged_and_can_be_sorted(
    tmp_path: Path, open_page: OpenPage
) -> None:
    browser = open_page(write(tmp_path, OF_A, OF_B))
    names = column(browser, ".differences", 1)
    assert [name.split() for name in names] == [["point-0", "worse"], ["point-1"]]
    assert column(browser, ".differences", 3) == ["−90.0", "+0.0"]
    assert column(browser, ".differences", 6) == ["1/10", "2/4"]
    assert len(browser.find_elements("css selector", ".differences circle")) == 2
    click(browser, ".differences th:nth-child(3) button")
    assert column(browser, ".differences", 3) == ["+0.0", "−90.0"]


@pytest.mark.parametrize(
    ("place", "rows"),
    [
        (0, 14),
        (1, [("success", "failure")] * 10),
        (2, [("failure", "success")]),
        (3, [("failure", "failure")]),
        (4, [("success", "success")] * 2),
    ],
)
def test_pairs_can_be_filtered_by_who_solved_them(
    place: int, rows: Any, tmp_path: Path, open_page: OpenPage
) -> None:
    browser = open_page(write(tmp_path, OF_A, OF_B))
    click(browser, ".choices button", place)
    shown = list(zip(column(browser, ".pairs", 4), column(browser, ".pairs", 5), strict=True))
    if place:
        assert shown == rows
    else:
        assert shown[:11] == [("success", "failure")] * 10 + [("failure", "success")]
    assert texts(browser, ".shown") == [f"{len(shown)} of 14"]
    pressed = browser.find_elements("css selector", ".choices [aria-pressed='true']")
    assert len(pressed) == 1


def test_a_task_leads_to_its_pairs(tmp_path: Path, open_page: OpenPage) -> None:
    browser = open_page(write(tmp_path, OF_A, OF_B))
    click(browser, ".differences .link", 1)
    assert column(browser, ".pairs", 1) == ["point-1"] * 4


def test_videos_of_a_pair_play_side_by_side(tmp_path: Path, open_page: OpenPage) -> None:
    for row in (OF_A[0], OF_A[3]):
        film(tmp_path / "a", row)
        film(tmp_path / "b", row)
    film(tmp_path / "b", OF_B[4])
    browser = open_page(write(tmp_path, OF_A, OF_B))
    captions = texts(browser, ".duo figcaption span")
    assert captions == [f"point-0, seed {seed}" for seed in (1003, 1004, 1000)]
    assert texts(browser, ".duo .missing") == ["no video"]
    videos = browser.find_elements("css selector", ".duo:first-child video")
    assert [video.get_attribute("src") for video in videos] == [
        (tmp_path / name / OF_A[3].video).as_uri() for name in "ab"
    ]
    assert videos[0].rect["y"] == videos[1].rect["y"]
    click(browser, ".duo .play")
    wait = """
        const [done] = arguments;
        const videos = [...document.querySelectorAll(".duo:first-child video")];
        const playing = () => videos.every((video) => video.currentTime > 0);
        const look = () => (playing() ? done(true) : setTimeout(look, 20));
        look();
    """
    assert browser.execute_async_script(wait)


def test_several_runs_have_a_section_each(tmp_path: Path, open_page: OpenPage) -> None:
    browser = open_page(write(tmp_path, OF_A, OF_B, OF_A))
    assert (
        "2 runs are compared with A: their p-values (Holm) and intervals"
        in texts(browser, "#about")[0]
    )
    assert "p=0.023 (Holm over 2 runs; p=0.012 alone)" in texts(browser, ".headline")[0]
    assert texts(browser, ".comparison > h2") == ["b against a", "c against a"]
    worse, undecided = texts(browser, ".words")
    assert worse == "B is worse by 64.3 points, statistically significant (p=0.023)"
    assert undecided.startswith("Undecided.")
    click(browser, ".comparison:last-child .choices button", 1)
    assert texts(browser, ".shown") == ["14 of 14", "0 of 14"], "sections filter on their own"


def test_separate_samples_have_no_table_of_pairs(tmp_path: Path, open_page: OpenPage) -> None:
    browser = open_page(write(tmp_path, OF_A, OF_B, paired=False))
    assert texts(browser, ".pairs") == []
    (words,) = texts(browser, ".words")
    assert words.startswith("B is worse by 64.3 points, statistically significant")


def test_both_themes_work(tmp_path: Path, open_page: OpenPage) -> None:
    page = write(tmp_path, OF_A, OF_B)
    dark = background(open_page(page, dark=True))
    browser = open_page(page)
    assert background(browser) != dark
    click(browser, "#theme")
    assert background(browser) == dark


@pytest.mark.parametrize("width", [320, 390, 768, 905, 1200])
def test_the_page_never_scrolls_sideways(tmp_path: Path, open_page: OpenPage, width: int) -> None:
    name = "a_very_long_name" * 9
    long = [[replace(row, task=name) for row in rows[:10]] for rows in (OF_A, OF_B)]
    film(tmp_path / "a", OF_A[0])
    browser = open_page(write(tmp_path, *long), width=width)
    (words,) = texts(browser, ".words")
    assert words == "B is worse by 90.0 points, statistically significant (p=0.004)"
    assert sideways_overflow(browser) == 0


def test_markup_from_outside_is_text(tmp_path: Path, open_page: OpenPage) -> None:
    text = "<script>window.hacked=1<img src=x onerror=window.hacked=1>\" onerror=window.hacked=1 '"
    rows, record = infected(text)
    film(tmp_path / text / "a", rows[0])
    page = write(tmp_path / text, rows, rows, record=record)
    write_run(tmp_path / text / "b", rows, replace(record, protocol={"policy": {}}))
    runs = [load_run(tmp_path / text / name) for name in "ab"]
    browser = open_page(write_compare_page(runs, compare_all(runs, Criteria()), page))
    assert browser.execute_script("return window.hacked") is None
    assert browser.find_elements("css selector", "img") == []
    for selector in (".sides dd", ".differences .link", ".pairs td", ".duo figcaption", ".notice"):
        assert any(text in shown for shown in texts(browser, selector)), selector


def test_a_thousand_pairs_are_interactive_within_a_second(
    tmp_path: Path, open_page: OpenPage
) -> None:
    rows = rows_of(*[[LOST] * 20] * 50)
    browser = open_page(write(tmp_path, rows, rows))
    script = "return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    assert browser.execute_script(script) < 1000
    assert texts(browser, ".shown") == ["1,000 of 1,000"]


def test_success_is_drawn_against_latency(tmp_path: Path, open_page: OpenPage) -> None:
    loaded = []
    for latency, won in ((0, 9), (2, 6), (4, 3)):
        protocol = {**RECORD.protocol, "eval": {"latency_steps": latency or None}}
        rows = rows_of([WON] * won + [LOST] * (10 - won))
        folder = tmp_path / f"latency{latency}"
        loaded.append(load_run(write_run(folder, rows, replace(RECORD, protocol=protocol))))
    browser = open_page(write_compare_page(loaded, compare_all(loaded, Criteria())))
    assert texts(browser, ".latency h2") == ["Success against latency"]
    assert len(browser.find_elements("css selector", ".latency .curve circle")) == 3
    rates = texts(browser, ".latency tbody td:nth-child(2)")
    assert rates == ["90.0%", "60.0%", "30.0%"]
    assert sideways_overflow(browser) == 0


def test_checkpoints_have_an_overview_and_a_curve(tmp_path: Path, open_page: OpenPage) -> None:
    loaded = []
    for step, won in ((1000, 1), (2000, 5), (4000, 9)):
        path = f"/w/act/checkpoints/{step:06}/pretrained_model"
        paths = {"policy.path": RecordedPath(path, path, "x", existed=True)}
        rows = rows_of([WON] * won + [LOST] * (10 - won))
        folder = tmp_path / f"step{step}"
        loaded.append(load_run(write_run(folder, rows, replace(RECORD, paths=paths))))
    browser = open_page(write_compare_page(loaded, compare_all(loaded, Criteria())))
    assert texts(browser, ".overview-of-runs td:nth-child(1)") == [
        "step1000",
        "step2000",
        "step4000",
    ]
    assert texts(browser, ".overview-of-runs td:nth-child(2)") == ["1,000", "2,000", "4,000"]
    assert texts(browser, ".overview-of-runs td:nth-child(3)") == ["10.0%", "50.0%", "90.0%"]
    assert texts(browser, ".steps h2") == ["Success against training step"]
    assert len(browser.find_elements("css selector", ".steps .curve circle")) == 3
    assert sideways_overflow(browser) == 0
