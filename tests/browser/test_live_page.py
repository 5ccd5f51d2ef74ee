"""The page of a run that goes on, and the list of runs, in Chromium."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proctor.runs.journal import JOURNAL_FILE
from tests.run_folders import eight_episodes, write_run
from tests.served import served

pytestmark = pytest.mark.browser


def text_of(browser: Any, selector: str) -> str:
    return str(browser.execute_script(
        "return document.querySelector(arguments[0])?.innerText ?? ''", selector
    ))  # fmt: skip


def test_a_live_page_follows_the_run_and_keeps_the_search(browser: Any, tmp_path: Path) -> None:
    rows = eight_episodes()
    folder = write_run(tmp_path, rows[:5])
    with served(folder) as server:
        browser.get(server.url)
        assert text_of(browser, "#shown").startswith("5 of 5")
        browser.find_element("id", "search").send_keys("point")
        with (folder / JOURNAL_FILE).open("ab") as journal:
            journal.write(msgspec.json.encode(rows[5]) + b"\n")
        deadline = time.monotonic() + 10
        while not text_of(browser, "#shown").startswith("6 of 6"):
            assert time.monotonic() < deadline, text_of(browser, "#shown")
            time.sleep(0.2)
        assert browser.find_element("id", "search").get_attribute("value") == "point"
        browser.get("about:blank")
    assert browser.get_log("browser") == []


def test_the_list_opens_a_run(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "mine", eight_episodes())
    with served(tmp_path) as server:
        browser.get(server.url)
        browser.find_element("link text", "mine").click()
        assert text_of(browser, "#title") == "random on fake"
        browser.get("about:blank")
    errors = [line for line in browser.get_log("browser") if "favicon" not in line["message"]]
    assert errors == []
