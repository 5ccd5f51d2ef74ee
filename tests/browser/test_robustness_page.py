"""The robustness section of the report page in Chromium."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from proctor.report.run.page import write_page
from proctor.report.run.run import load_run
from tests.browser.test_docs_site import violations
from tests.browser.test_report_page import TINY_VIDEO, OpenPage, click, sideways_overflow, texts
from tests.run_folders import perturbed_run, write_run

pytestmark = pytest.mark.browser


@pytest.fixture
def page(tmp_path: Path) -> Path:
    clean = "ssssssssssssssssffss"
    outcomes = {
        ("camera", 1): "sssssssfssssssssffss",
        ("camera", 2): "fffffffffsffffffffff",
        ("language", None): "sessssssssssssssffss",
    }
    run = load_run(write_run(tmp_path, *perturbed_run(outcomes, clean)))
    assert run.robustness is not None
    lost = next(pair for pair in run.robustness.pairs if pair.lost)
    for row in (lost.clean, lost.perturbed):
        (tmp_path / row.video).parent.mkdir(parents=True)
        shutil.copy(TINY_VIDEO, tmp_path / row.video)
    return write_page(tmp_path)


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_drops_have_numbers_and_colours_that_anyone_can_read(
    page: Path, open_page: OpenPage, width: int, dark: bool
) -> None:
    browser = open_page(page, width=width, dark=dark)
    assert {"+5.0", "+85.0 *", "+45.0", "+0.0"} <= set(texts(browser, ".drops td.drop button"))
    worst = browser.find_element("css selector", ".drops .shade4")
    assert "90.0% → 5.0%, n=20" in worst.text
    assert "1 without a pair" in browser.find_element("id", "drops").text
    assert len(browser.find_elements("css selector", ".odds .whisker")) == 4
    assert sideways_overflow(browser) == 0
    assert violations(browser) == []


def test_a_lost_episode_plays_beside_its_clean_counterpart(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    assert len(browser.find_elements("css selector", "#robust-films video")) == 2
    said = texts(browser, "#robust-films .duo")[0]
    assert "clean" in said
    assert "success" in said
    assert "failure" in said
    click(browser, ".drops td.drop button", 1)
    assert "camera 2: lost" in browser.find_element("id", "only").text
