"""The live page of a run, and the list of runs, in Chromium."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proctor.runs.folder import RunFolder
from proctor.runs.journal import JOURNAL_FILE
from proctor.runs.records import PlannedTask
from proctor.types import Outcome
from tests.run_folders import BEGAN, RECORD, eight_episodes, write_run
from tests.served import served

pytestmark = pytest.mark.browser


def text_of(browser: Any, selector: str) -> str:
    return str(browser.execute_script(
        "return document.querySelector(arguments[0])?.innerText ?? ''", selector
    ))  # fmt: skip


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_live_page_follows_the_run_and_keeps_the_search(browser: Any, tmp_path: Path) -> None:
    rows = eight_episodes()
    folder = write_run(tmp_path, rows[:5])
    with served(folder) as server:
        browser.get(server.url)
        assert text_of(browser, "#shown").startswith("5 of 5")
        browser.find_element("id", "search").send_keys("point")
        with (folder / JOURNAL_FILE).open("ab") as journal:
            journal.write(msgspec.json.encode(rows[5]) + b"\n")
        wait_until(lambda: text_of(browser, "#shown").startswith("6 of 6"))
        assert browser.find_element("id", "search").get_attribute("value") == "point"
        browser.get("about:blank")
    assert browser.get_log("browser") == []


def test_the_list_opens_a_run(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "mine", eight_episodes())
    with served(tmp_path) as server:
        browser.get(server.url)
        browser.find_element("link text", "mine").click()
        wait_until(lambda: text_of(browser, "#title").startswith("random on fake"))
        browser.get("about:blank")
    errors = [line for line in browser.get_log("browser") if "favicon" not in line["message"]]
    assert errors == []


def test_a_page_says_that_its_run_goes_on_and_what_became_of_it(
    browser: Any, tmp_path: Path
) -> None:
    tasks = [PlannedTask("point", n, f"point-{n}", "go", 50, 4) for n in range(3)]
    record = replace(RECORD, planned_episodes=12, tasks=tasks)
    folder = write_run(tmp_path, eight_episodes(), record)
    with served(folder) as server:
        with RunFolder(folder).locked():
            browser.get(server.url)
            assert text_of(browser, "#title .badge") == "running"
            assert text_of(browser, ".going") == "8 of 12 episodes · 66% · about 5 s left"
            assert "point-2" in text_of(browser, ".rates")
            assert text_of(browser, ".notice").startswith("Starts assumed")
        wait_until(lambda: text_of(browser, "#title .badge") == "incomplete")
        assert "ended without a word" in text_of(browser, ".notice")
        browser.get("about:blank")
    browser.get_log("browser")


def test_a_page_whose_server_is_gone_says_so(browser: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path, eight_episodes()[:5])
    with RunFolder(folder).locked(), served(folder) as server:
        browser.get(server.url)
        assert text_of(browser, "#title .badge") == "running"
        browser.execute_script("window.fetch = () => Promise.reject(new TypeError('gone'))")
        wait_until(lambda: text_of(browser, "#title .badge") == "not connected")
        browser.get("about:blank")
    assert browser.get_log("browser") == []


def test_the_list_is_searched_sorted_and_two_of_it_compared(browser: Any, tmp_path: Path) -> None:
    rows = eight_episodes()
    write_run(tmp_path / "best", [replace(row, outcome=Outcome.SUCCESS) for row in rows])
    write_run(tmp_path / "worse", rows, replace(RECORD, sessions=[BEGAN + 9000]))
    write_run(tmp_path / "cut", rows[:3], replace(RECORD, sessions=[BEGAN + 3000]))
    (write_run(tmp_path / "broken", rows) / "run.json").write_text("{")
    names = """return [...document.querySelectorAll("#runs td:nth-child(2) a:first-child")]
        .map((link) => link.innerText)"""
    with served(tmp_path) as server:
        browser.get(server.url)
        assert browser.execute_script(names)[:3] == ["worse", "cut", "best"], "newest first"
        assert "is damaged" in text_of(browser, "#runs .damaged")
        browser.find_element("xpath", "//button[text()='Success']").click()
        assert browser.execute_script(names)[0] == "best"
        browser.find_element("xpath", "//button[text()='incomplete']").click()
        assert browser.execute_script(names)[:1] == ["cut"]
        browser.find_element("xpath", "//button[text()='All']").click()
        browser.find_element("id", "search").send_keys("best 2023")
        assert text_of(browser, "#shown") == "1 of 4"
        browser.find_element("css selector", "[aria-label='Compare best']").click()
        browser.find_element("id", "search").clear()
        browser.find_element("id", "search").send_keys("w")
        browser.find_element("css selector", "[aria-label='Compare worse']").click()
        browser.find_element("link text", "Compare worse with best").click()
        wait_until(lambda: text_of(browser, "#title") == "worse against best")
        assert "only A" in text_of(browser, "#comparisons")
        browser.find_element("link text", "All runs").click()
        wait_until(lambda: text_of(browser, "#shown") == "4 of 4")
        browser.get("about:blank")
    assert browser.get_log("browser") == []


def test_the_list_labels_recordings_and_breaks_names_between_words(
    browser: Any, tmp_path: Path
) -> None:
    size = {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    resolved = RECORD.resolved | {"record": {"keep": "success"}}
    record = replace(RECORD, resolved=resolved, protocol={"policy": {"type": "expert"}})
    write_run(tmp_path / "eval" / "pick_place_with_noise_and_two_cameras", eight_episodes(), record)
    with served(tmp_path) as server:
        browser.get(server.url)
        assert text_of(browser, "#runs .tag") == "recording"
        assert text_of(browser, "#runs td.far").endswith("demonstrations")
        assert text_of(browser, "#runs td.result").endswith("of all attempts")
        lines = browser.execute_script(
            """const words = [...document.querySelectorAll('#runs .folder')];
            return words.map((word) => [...word.childNodes].filter((node) => node.nodeType === 3)
                .map((node) => { const range = document.createRange(); range.selectNode(node);
                    return range.getClientRects().length; }))"""
        )
        assert {n for words in lines for n in words} == {1}, "no word is on two lines"
        browser.get("about:blank")


@pytest.mark.parametrize("width", [390, 760, 1010, 1200])
def test_the_list_never_scrolls_sideways(browser: Any, tmp_path: Path, width: int) -> None:
    write_run(tmp_path / ("a_very_long_name" * 12), eight_episodes()[:3])
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    with served(tmp_path) as server:
        browser.get(server.url)
        browser.find_element("css selector", "summary").click()
        script = "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
        assert browser.execute_script(script) == 0
        browser.get("about:blank")
