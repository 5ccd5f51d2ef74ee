"""The report page in Chromium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.report.run.page import write_page
from proctor.types import Outcome, Score
from tests.run_folders import RECORD, eight_episodes, episode, infected, write_run

pytestmark = pytest.mark.browser

TINY_VIDEO = Path(__file__).with_name("tiny.mp4")
"""Two seconds of H.264, 64 x 64, made by Chromium's MediaRecorder from a canvas."""

OpenPage = Callable[..., Any]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return write_page(write_run(tmp_path, eight_episodes()))


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.innerText)"
    return list(browser.execute_script(script, selector))


def click(browser: Any, selector: str, place: int = 0) -> None:
    browser.find_elements("css selector", selector)[place].click()


def column(browser: Any, table: str, number: int) -> list[str]:
    """The first line of each cell."""
    cells = texts(browser, f"{table} tr:not(.detail) td:nth-child({number})")
    return [text.strip().split("\n")[0] for text in cells]


def type_search(browser: Any, text: str) -> None:
    field = browser.find_element("id", "search")
    field.clear()
    field.send_keys(text)


def background(browser: Any) -> str:
    return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))


def sideways_overflow(browser: Any) -> int:
    script = "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
    return int(browser.execute_script(script))


def test_the_headline_says_rate_interval_and_errors(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    said = browser.find_element("id", "headline").text
    assert "57.1%" in said
    assert "[25.0, 84.2] 95% interval (Wilson), n=7" in said
    assert "50.0% – 62.5%" in said


def test_failures_come_first_then_errors(page: Path, open_page: OpenPage) -> None:
    outcomes = column(open_page(page), ".log", 1)
    assert outcomes == ["failure"] * 3 + ["error"] + ["success"] * 4


def test_what_diverged_stands_after_the_failures_and_can_be_chosen(
    tmp_path: Path, open_page: OpenPage
) -> None:
    rows = [*eight_episodes(), episode(0, 4, Outcome.DIVERGED)]
    browser = open_page(write_page(write_run(tmp_path, rows)))
    outcomes = column(browser, ".log", 1)
    assert outcomes == ["failure"] * 3 + ["diverged", "error"] + ["success"] * 4
    assert "Simulation diverged, failed" in browser.find_element("id", "figures").text
    click(browser, "#outcomes button", 2)
    assert column(browser, ".log", 1) == ["diverged"]
    pressed = [
        button.text
        for button in browser.find_elements("css selector", "#outcomes button")
        if button.get_attribute("aria-pressed") == "true"
    ]
    assert pressed == ["Diverged 1"]


def test_a_click_on_a_header_sorts_and_a_second_one_turns_it(
    page: Path, open_page: OpenPage
) -> None:
    browser = open_page(page)
    click(browser, ".log th:nth-child(5) button")
    steps = column(browser, ".log", 5)
    assert steps == ["10", "10", "20", "30", "30", "40", "40", "n/a"]
    click(browser, ".log th:nth-child(5) button")
    steps = column(browser, ".log", 5)
    assert steps == ["40", "40", "30", "30", "20", "10", "10", "n/a"], "missing stays last"
    sort = browser.find_element("css selector", ".log th:nth-child(5)").get_attribute("aria-sort")
    assert sort == "descending"


def test_tasks_start_with_the_lowest_rate_and_can_be_sorted(
    page: Path, open_page: OpenPage
) -> None:
    browser = open_page(page)
    assert column(browser, ".rates", 1) == ["point-1", "point-0"]
    click(browser, ".rates th:nth-child(1) button")
    assert column(browser, ".rates", 1) == ["point-0", "point-1"]
    assert len(browser.find_elements("css selector", ".rates .violin")) == 2


def test_text_and_outcome_filter_together(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    type_search(browser, "POINT-1")
    assert column(browser, ".log", 2) == ["point-1"] * 4
    click(browser, "#outcomes button", 1)
    assert column(browser, ".log", 1) == ["failure"] * 2
    assert browser.find_element("id", "shown").text == "2 of 8"
    click(browser, "#outcomes button", 0)
    type_search(browser, "broke at")
    assert column(browser, ".log", 1) == ["error"]


def test_a_task_leads_to_its_episodes(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    click(browser, ".rates .link")
    assert set(column(browser, ".log", 2)) == {"point-1"}


def test_an_episode_opens_to_its_error_and_command(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    click(browser, "#outcomes button", 2)
    click(browser, ".log .toggle")
    assert texts(browser, ".detail .text") == ["the simulator broke at 1/1"]
    assert texts(browser, ".detail .copyable pre")[0].replace("\n", " ") == (
        "proctor eval --policy.type=random --env.type=fake --eval.n_episodes=4 "
        "--env.task=point --env.task_ids=1 --eval.episodes=1"
    )
    click(browser, ".log .toggle")
    assert texts(browser, ".detail") == []


def test_videos_show_failures_first_and_play(tmp_path: Path, open_page: OpenPage) -> None:
    rows = eight_episodes()
    for row in (rows[0], rows[2]):
        video = tmp_path / row.video
        video.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TINY_VIDEO, video)
    browser = open_page(write_page(write_run(tmp_path, rows)))
    captions = texts(browser, "figcaption")
    assert captions == ["failure point-0 episode 2", "success point-0 episode 0"]
    source = browser.find_element("css selector", "figure video").get_attribute("src")
    assert source == (tmp_path / rows[2].video).as_uri()
    play = """
        const [done] = arguments, video = document.querySelector("figure video");
        video.ontimeupdate = () => video.currentTime > 0 && done(video.videoWidth);
        video.muted = true; // what may play without a click
        video.play();
    """
    assert browser.execute_async_script(play) == 64


def test_videos_keep_a_speed_and_go_round(tmp_path: Path, open_page: OpenPage) -> None:
    rows = eight_episodes()
    video = tmp_path / rows[2].video
    video.parent.mkdir(parents=True)
    shutil.copy(TINY_VIDEO, video)
    browser = open_page(write_page(write_run(tmp_path, rows)))
    browser.find_element("css selector", "[aria-label=Speed] option[value='2']").click()
    click(browser, ".playback input")
    click(browser, "#filmed")
    assert column(browser, ".log", 3) == ["2"]
    assert texts(browser, "#shown") == ["1 of 8"]
    click(browser, ".log .toggle")
    ready = """
        const [done] = arguments, videos = [...document.querySelectorAll("video")];
        const late = Date.now() + 50000;  // the event "loadedmetadata" may follow readyState
        const set = (one) => one.readyState > 1 && one.playbackRate === 2;
        const look = () => (videos.every(set) || Date.now() > late
          ? done(videos.map((one) => [one.playbackRate, one.loop])) : setTimeout(look, 20));
        look();
    """
    assert browser.execute_async_script(ready) == [[2, True], [2, True]]


def test_the_episodes_that_are_shown_can_be_had_as_csv(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    type_search(browser, "point-1")
    click(browser, "#outcomes button", 2)
    script = """
        const [done] = arguments;
        URL.createObjectURL = (blob) => { blob.text().then(done); return "#"; };
        document.getElementById("csv").click();
    """
    head, line, end = browser.execute_async_script(script).split("\n")
    told = dict(zip(head.split(","), line.split(","), strict=True))
    assert end == ""
    assert (told["suite"], told["task"], told["task_id"]) == ("point", "point-1", "1")
    assert (told["outcome"], told["steps"]) == ("error", "")
    assert told["error"] == "the simulator broke at 1/1"


def test_the_header_says_what_was_examined_and_where_it_lies(
    tmp_path: Path, open_page: OpenPage
) -> None:
    record = replace(RECORD, resolved={"policy": {"type": "pretrained", "path": "me/act"}})
    browser = open_page(write_page(write_run(tmp_path, eight_episodes(), record)))
    assert texts(browser, ".identity dd") == ["me/act", str(tmp_path)]
    assert texts(browser, "#title .badge") == ["complete"]
    assert texts(browser, ".rates .group") == ["point", "point"]
    links = browser.find_elements("css selector", "#files a")
    assert [link.text for link in links] == ["run.json", "episodes.jsonl"]
    assert links[0].get_attribute("href") == (tmp_path / "run.json").as_uri()


def test_the_time_says_how_near_the_limit_the_run_came(page: Path, open_page: OpenPage) -> None:
    (said,) = texts(open_page(page), "#limit")
    assert said.startswith("39.4% of the limit – the workers simulated or rendered 39.4%")


def test_what_is_to_be_known_of_videos_stands_with_them(
    tmp_path: Path, open_page: OpenPage
) -> None:
    folder = write_run(tmp_path, eight_episodes())
    (folder / "videos").mkdir()
    warnings = {f"videos/point_0/episode_{n}.mp4": f"<b>{n}</b> differs" for n in range(7)}
    (folder / "videos/warnings.json").write_text(json.dumps(warnings))
    browser = open_page(write_page(folder))
    assert browser.find_element("id", "films").is_displayed()
    assert texts(browser, "#film-warnings .notice") == [f"<b>{n}</b> differs" for n in range(5)]
    assert texts(browser, "#film-warnings .quiet") == ["2 more in videos/warnings.json"]


def test_the_theme_follows_the_system_until_it_is_toggled(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page, dark=True)
    dark = background(browser)
    light = background(open_page(page, dark=False))
    assert dark != light
    click(browser, "#theme")
    assert background(browser) == dark
    browser.refresh()
    assert background(browser) == dark, "the choice is remembered"


def test_pointing_at_the_timeline_names_the_episode(page: Path, open_page: OpenPage) -> None:
    from selenium.webdriver import ActionChains

    browser = open_page(page)
    lanes = browser.find_element("css selector", ".lanes svg")
    ActionChains(browser).move_to_element_with_offset(lanes, -300, -10).perform()
    assert "Worker 0, point-0 episode" in browser.find_element("id", "pointed").text


@pytest.mark.parametrize("width", [320, 390, 768, 905, 1025, 1200])
def test_the_page_never_scrolls_sideways(
    tmp_path: Path, open_page: OpenPage, *, width: int
) -> None:
    long = [replace(row, task="a_very_long_name" * 9, error=row.error and "y" * 900)
            for row in eight_episodes()]  # fmt: skip
    scores = [Score("max_reward", "max reward"), Score("coverage", "max coverage")]
    folder = write_run(tmp_path, long, replace(RECORD, scores=scores))
    browser = open_page(write_page(folder), width=width)
    click(browser, "#outcomes button", 2)
    click(browser, ".log .toggle")
    for place in range(4):
        click(browser, "summary", place)
    assert sideways_overflow(browser) == 0


def test_incomplete_and_damaged_runs_say_so(tmp_path: Path, open_page: OpenPage) -> None:
    write_run(tmp_path, eight_episodes()[:5], replace(RECORD, sessions=[]))
    with (tmp_path / "episodes.jsonl").open("a") as journal:
        journal.write("{}\n")
    browser = open_page(write_page(tmp_path))
    incomplete, damaged, assumed = texts(browser, ".notice")
    assert assumed.startswith("Starts assumed")  # these rows were written without
    assert "5 of 8 episodes" in incomplete
    assert f"proctor eval --resume --output_dir={tmp_path}" in incomplete.replace("\n", " ")
    assert texts(browser, ".going") == ["5 of 8 episodes · 62%"]
    assert "1 line of episodes.jsonl could not be read and is left out: number 6" in damaged


def test_a_run_without_episodes_has_a_page(tmp_path: Path, open_page: OpenPage) -> None:
    browser = open_page(write_page(write_run(tmp_path, [])))
    assert texts(browser, ".big") == ["n/a"]


def test_markup_from_outside_is_text(tmp_path: Path, open_page: OpenPage) -> None:
    text = (
        "</script><script>window.hacked=1;alert(1)</script>"
        "<img src=x onerror=window.hacked=1>\" onerror=window.hacked=1 '"
    )
    browser = open_page(write_page(write_run(tmp_path, *infected(text))))
    click(browser, "#outcomes button", 2)
    click(browser, ".log .toggle")
    for place in range(4):
        click(browser, "summary", place)
    assert browser.execute_script("return window.hacked") is None
    assert browser.find_elements("css selector", "img") == []
    assert text in browser.title
    for selector in ("h1", ".rates .link", ".log td", ".detail .text", ".facts dt", ".facts dd"):
        assert any(text in shown for shown in texts(browser, selector)), selector


def test_a_thousand_episodes_are_interactive_within_a_second(
    tmp_path: Path, open_page: OpenPage
) -> None:
    rows = [episode(task, i, Outcome.FAILURE) for task in range(50) for i in range(20)]
    browser = open_page(write_page(write_run(tmp_path, rows)))
    script = "return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    assert browser.execute_script(script) < 1000
    assert browser.find_element("id", "shown").text == "1,000 of 1,000"
