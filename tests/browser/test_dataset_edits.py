"""Edits from the page of a dataset, by mouse and by keyboard, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tasks import read_tasks
from proctor.report.dataset.site import DatasetSite
from proctor.report.server.serve import PageServer
from tests.browser.test_dataset_page import until
from tests.browser.test_report_page import background, click, column, sideways_overflow, texts
from tests.served import serving
from tests.unit.datasets.damage import EPISODES, VIDEO, column_with, copy_of, entry

pytestmark = pytest.mark.browser
ENTER, ESCAPE = "\ue007", "\ue00c"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_of(VIDEO, tmp_path)


@pytest.fixture
def server(root: Path) -> Iterator[PageServer]:
    with serving(DatasetSite(root, editable=True)) as server:
        yield server


@pytest.fixture
def page(browser: Any, server: PageServer) -> Iterator[Any]:
    """The page of three episodes, opened with the printed address."""
    show(browser, server.edit_url)
    yield browser
    browser.get("about:blank")
    assert browser.get_log("browser") == []


def show(browser: Any, url: str) -> None:
    browser.get(url)
    until(browser, "document.getElementById('shown-title').textContent.startsWith('Episode')")


def press(browser: Any, keys: str) -> None:
    browser.switch_to.active_element.send_keys(keys)


def until_done(browser: Any) -> None:
    until(browser, "document.querySelector('#edit-news .done') !== null")


def test_episodes_are_marked_and_deleted_by_keyboard_alone(page: Any, root: Path) -> None:
    press(page, "x")
    assert texts(page, "#marked") == ["1 episode marked: 0"]
    press(page, "n")
    until(page, "document.getElementById('shown-title').textContent === 'Episode 1'")
    press(page, "x")
    assert texts(page, "#marked") == ["2 episodes marked: 0-1"]
    press(page, "d")
    assert "2 of 3 episodes" in texts(page, "#edit-form p")[0]
    press(page, ENTER)
    until_done(page)
    assert texts(page, "#backup") == [str(root.with_name(f"{root.name}_old"))]
    assert column(page, "#episodes", 3) == ["push the block"]
    assert read_info(root).total_episodes == 1
    assert read_info(root.with_name(f"{root.name}_old")).total_episodes == 3
    assert page.find_element("css selector", "#edit-marks").is_displayed() is False
    click(page, "#edit-news button")
    page.refresh()
    assert page.find_element("css selector", "#edit").is_displayed() is False


def test_boxes_mark_episodes_and_a_new_task_is_typed(page: Any, root: Path) -> None:
    click(page, "#episodes .box input", 1)
    assert texts(page, "#shown-title") == ["Episode 0"], "a box does not open its episode"
    click(page, "#actions [data-operation=relabel]")
    press(page, "dry the cup")
    press(page, ENTER)
    until_done(page)
    assert column(page, "#episodes", 3) == ["push the block", "dry the cup", "push the block"]
    assert read_tasks(root, read_info(root)) == ("push the block", "dry the cup")


def test_keys_that_are_typed_into_a_field_mark_nothing(page: Any, root: Path) -> None:
    click(page, "#mark-found")
    assert texts(page, "#marked") == ["3 episodes marked: 0-2"]
    press(page, "r")
    press(page, "xnd")
    assert texts(page, "#marked") == ["3 episodes marked: 0-2"]
    press(page, ESCAPE)
    assert page.find_element("css selector", "#edit-form").is_displayed() is False
    page.refresh()
    until(page, "document.getElementById('marked').textContent === '3 episodes marked: 0-2'")


def test_a_split_writes_beside_and_a_failure_is_shown(page: Any, root: Path) -> None:
    for again in (False, True):
        press(page, "x")
        press(page, "s")
        press(page, ENTER)
        if again:  # both names are taken now
            until(page, "document.getElementById('edit-news').textContent.includes('unchanged')")
        else:
            until_done(page)
            assert read_info(root.with_name(f"{root.name}_val")).total_episodes == 1
            assert read_info(root.with_name(f"{root.name}_train")).total_episodes == 2
    assert f"{root.name}_val exists" in texts(page, "#edit-news")[0]


def test_without_the_token_the_page_only_says_how_to_edit(browser: Any, server: PageServer) -> None:
    browser.get(server.url)
    browser.execute_script("localStorage.clear(); sessionStorage.clear()")
    show(browser, server.url)
    assert "?token=" in texts(browser, "#edit-hint")[0]
    press(browser, "x")
    assert browser.find_element("css selector", "#edit").is_displayed() is False
    assert browser.find_elements("css selector", "#episodes .box") == []


@pytest.mark.parametrize("width", [320, 1200])
def test_the_form_fits_the_window_in_both_themes(browser: Any, tmp_path: Path, width: int) -> None:
    root = copy_of(VIDEO, tmp_path, column_with(EPISODES, "tasks", entry(0, ["a" * 300])))
    size = {"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    grounds = set()
    with serving(DatasetSite(root, editable=True)) as server:
        show(browser, server.edit_url)
        for _ in range(2):
            click(browser, "#theme")
            grounds.add(background(browser))
        press(browser, "x")
        press(browser, "s")
        assert sideways_overflow(browser) == 0
        box = browser.execute_script(
            "return document.getElementById('edit-form').getBoundingClientRect().toJSON()"
        )
        assert box["bottom"] <= 700
        browser.get("about:blank")
    assert len(grounds) == 2
