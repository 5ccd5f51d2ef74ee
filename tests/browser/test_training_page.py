"""The page of a training in Chromium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.report.training.page import write_training_page
from tests.training_folders import RECORD, reading, write_training

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Any]


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.innerText)"
    return list(browser.execute_script(script, selector))


def test_success_curves_and_time_are_drawn(open_page: OpenPage, tmp_path: Path) -> None:
    browser = open_page(write_training_page(write_training(tmp_path)))
    assert texts(browser, "#rate .big") == ["87.5%"]
    assert "the best of 2" in texts(browser, "#rate-about")[0]
    assert texts(browser, "#curves h3") == [
        "Loss (logarithmic)",
        "Learning rate",
        "Gradient norm, before clipping (logarithmic)",
    ]
    assert len(browser.find_elements("css selector", "#rates circle")) == 2
    assert len(browser.find_elements("css selector", "#rates .whisker")) == 2
    rows = texts(browser, "#evaluations tbody tr")
    assert [row.split()[0] for row in rows] == ["400", "300", "200"]
    assert "<b>no</b> display here" in rows[1], "text of others stays text"
    assert texts(browser, "#spent li") == [
        "training 7.20 s, 90.0%",
        "waiting for data 0.80 s, 10.0%",
    ]
    assert texts(browser, "#rates .along span")[0] == "0"
    link = browser.find_element("css selector", "#evaluations a").get_attribute("href")
    assert link == (tmp_path / "eval/000400/report.html").as_uri()
    assert len(browser.find_elements("css selector", "#film-list video")) == 1


def test_pointing_at_a_curve_reads_it(open_page: OpenPage, tmp_path: Path) -> None:
    browser = open_page(write_training_page(write_training(tmp_path)))
    browser.execute_script(
        "const top = document.querySelector('#curves .plain svg:last-child');"
        "const box = top.getBoundingClientRect();"
        "top.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 4}));"
    )
    (said,) = texts(browser, "#curves figure:first-child .legend")
    assert "at step 100" in said
    assert said.replace("\n", " ").startswith("loss 1.357 validation loss 3 ")


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_hangs_over_the_edge_and_a_single_reading_is_enough(
    open_page: OpenPage, tmp_path: Path, width: int
) -> None:
    lines = [reading(10, lr=0.0, loss=-1.0)]
    browser = open_page(write_training_page(write_training(tmp_path, lines)), width=width)
    script = "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
    assert browser.execute_script(script) == 0
    assert texts(browser, "#rate .big") == ["-1"]


def test_a_loss_of_one_part_is_drawn_once(open_page: OpenPage, tmp_path: Path) -> None:
    lines = [reading(step, loss=1 / step, parts={"l1": 1 / step}) for step in (10, 20)]
    browser = open_page(write_training_page(write_training(tmp_path, lines)))
    (legend,) = texts(browser, "#curves figure:first-child .legend")
    assert legend.split() == ["loss", "0.05"]


def test_a_training_that_was_left_says_how_to_go_on(open_page: OpenPage, tmp_path: Path) -> None:
    record = RECORD | {"resolved": {**RECORD["resolved"], "steps": 1600}}
    browser = open_page(write_training_page(write_training(tmp_path, record=record)))
    assert texts(browser, "#title .badge") == ["incomplete"]
    assert texts(browser, ".going") == ["400 of 1,600 steps · 25%"]
    (said,) = texts(browser, ".notice")
    assert f"proctor train --resume --output_dir={tmp_path}" in said.replace("\n", " ")
