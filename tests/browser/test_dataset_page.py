"""The page of a dataset, served and as one file, in Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import proctor.datasets
from proctor.report.dataset.page import PageLimits, write_dataset_page
from proctor.report.dataset.site import DatasetSite
from proctor.report.dataset.summary import read_summary
from tests.browser.test_report_page import (
    background,
    click,
    column,
    sideways_overflow,
    texts,
    type_search,
)
from tests.served import serving
from tests.unit.datasets.damage import (
    EPISODES,
    IMAGES,
    INFO,
    TASKS,
    VIDEO,
    column_with,
    copy_of,
    entry,
    json_with,
)

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Any]
HOSTILE = "<img src=x onerror=window.hacked=1>\" onerror=window.hacked=1 '"


@pytest.fixture
def served_page(browser: Any) -> Iterator[Any]:
    """The dataset of three episodes in one video, served, at its first episode."""
    with serving(DatasetSite(VIDEO)) as server:
        browser.get(server.url)
        until(browser, "document.querySelector('video')?.readyState >= 2")
        yield browser
        browser.get("about:blank")
    assert browser.get_log("browser") == []


def until(browser: Any, condition: str) -> None:
    """Wait until ``condition`` holds in the page, for 50 seconds at most."""
    wait = f"""
        const [done] = arguments, late = Date.now() + 50000;
        const look = () => ({condition} ? done(true) : Date.now() > late ? done(false)
            : setTimeout(look, 20));
        look();
    """
    assert browser.execute_async_script(wait), condition


def file_page(folder: Path, source: Path = VIDEO, **bounds: bool) -> Path:
    facts = read_summary(source)
    episodes = list(range(len(facts.episodes)))
    write_dataset_page(facts, folder / "page.html", episodes, PageLimits(1_000_000, **bounds))
    return folder / "page.html"


def go_to(browser: Any, frame: int) -> None:
    browser.execute_script(
        "const slider = document.getElementById('frame'); slider.value = arguments[0];"
        "slider.dispatchEvent(new Event('input'))",
        frame,
    )


def time_of(browser: Any) -> float:
    return float(browser.execute_script("return document.querySelector('video').currentTime"))


def test_an_episode_is_its_part_of_the_video_in_step_with_the_plots(served_page: Any) -> None:
    browser = served_page
    click(browser, "#episodes tr.row", 1)
    until(browser, "document.getElementById('shown-title').textContent === 'Episode 1'")
    until(browser, "document.querySelector('video')?.readyState >= 2")
    go_to(browser, 3)
    assert time_of(browser) == pytest.approx(1.2 + 3.5 / 10), "episode 1 begins at 1.2 s"
    assert texts(browser, "#clock") == ["frame 3 of 7, 0.30 s"]
    assert texts(browser, "#said") == ["lift the cup"]
    cursor = "return document.querySelector('.cursor').getAttribute('x1')"
    assert float(browser.execute_script(cursor)) == 500
    state = proctor.datasets.open(VIDEO)[12 + 3]["observation.state"]
    assert [float(text) for text in texts(browser, ".series:first-child output")] == pytest.approx(
        state.tolist(), rel=1e-3
    )


def test_playing_ends_where_the_episode_does(served_page: Any) -> None:
    browser = served_page
    click(browser, "#play")
    assert texts(browser, "#play") == ["Pause"]
    until(browser, "document.getElementById('play').textContent === 'Play'")
    assert texts(browser, "#clock") == ["frame 11 of 12, 1.10 s"]
    assert time_of(browser) == pytest.approx(1.15), "and not in the next one"


def test_a_press_on_a_plot_goes_to_its_frame(served_page: Any) -> None:
    browser = served_page
    drawing = browser.find_element("css selector", ".series svg")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", drawing)
    drawing.click()  # in its middle
    assert texts(browser, "#clock")[0].split()[1] in ("5", "6")
    assert time_of(browser) == pytest.approx(0.6, abs=0.051)


def test_episodes_are_found_by_their_task_and_number(served_page: Any) -> None:
    browser = served_page
    type_search(browser, "block 2")
    assert column(browser, "#episodes", 1) == ["2"]
    assert texts(browser, "#shown") == ["1 of 3"]
    type_search(browser, "push")
    assert column(browser, "#episodes", 3) == ["12", "9"]


def test_one_file_plays_its_episodes_without_a_server(tmp_path: Path, open_page: OpenPage) -> None:
    browser = open_page(file_page(tmp_path))
    click(browser, "#next")
    until(browser, "document.querySelector('video')?.readyState >= 2")
    go_to(browser, 6)
    assert time_of(browser) == pytest.approx(0.65), "in a video of its own"
    click(browser, "#previous")
    assert texts(browser, "#shown-title") == ["Episode 0"]


def test_pictures_follow_the_frame(tmp_path: Path, open_page: OpenPage) -> None:
    browser = open_page(file_page(tmp_path, IMAGES))
    picture = "return document.querySelector('#cameras img').src"
    shown = set()
    for frame in range(5):
        go_to(browser, frame)
        shown.add(browser.execute_script(picture))
    assert len(shown) == 5
    until(browser, "document.querySelector('#cameras img').naturalWidth === 96")


@pytest.mark.parametrize("width", [320, 768, 1200])
def test_the_page_never_scrolls_sideways(tmp_path: Path, open_page: OpenPage, width: int) -> None:
    root = copy_of(VIDEO, tmp_path, column_with(EPISODES, "tasks", entry(0, ["a" * 300])))
    browser = open_page(file_page(tmp_path, root), width=width)
    assert texts(browser, "#shown-title") == ["Episode 0"]
    assert sideways_overflow(browser) == 0


def test_both_themes_work(tmp_path: Path, open_page: OpenPage) -> None:
    page = file_page(tmp_path, as_images=True)
    dark = background(open_page(page, dark=True))
    assert background(open_page(page)) != dark


def test_markup_from_outside_is_text(tmp_path: Path, open_page: OpenPage) -> None:
    def infect(said: dict[str, Any]) -> None:
        said["robot_type"] = HOSTILE
        said["features"]["action"]["names"] = [HOSTILE, "b"]

    root = copy_of(
        VIDEO, tmp_path, json_with(INFO, infect), column_with(TASKS, "task", entry(0, HOSTILE)),
        column_with(EPISODES, "tasks", entry(0, [HOSTILE])),
    )  # fmt: skip
    browser = open_page(file_page(tmp_path, root))
    assert browser.execute_script("return window.hacked") is None
    assert browser.find_elements("css selector", "img") == []
    for selector in ("#said", "#episodes td", "#figures dd", ".legend li", "#stats td"):
        assert any(HOSTILE in shown for shown in texts(browser, selector)), selector
