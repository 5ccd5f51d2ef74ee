"""The live page of a robot in Chromium: it follows the loop and shows the overlay."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from proctor.report.server.live_robot import (
    LiveChannel,
    LiveRobot,
    LiveStatus,
    LiveStep,
    serving_live_robot,
)
from proctor.system.graphics.png import encode_png

pytestmark = pytest.mark.browser


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_page_follows_the_robot(browser: Any) -> None:
    robot = LiveRobot("Trials", [LiveChannel("arm.pos", "degrees", -90, 90)], ["front"], 30)
    image = np.full((6, 8, 3), 200, np.uint8)
    robot.publish(LiveStep({"arm.pos": 12.5, "front": image}, {"arm.pos": 20.0}), 0.0)
    robot.status = LiveStatus("reset the scene", "trial 2, scene 1", "Enter: start", 1, 40)

    def text(selector: str) -> str:
        return str(browser.find_element("css selector", selector).text)

    with serving_live_robot(robot, "127.0.0.1", 0) as address:
        browser.get(address)
        wait_until(lambda: text("#headline") == "trial 2, scene 1")
        assert "1 of 40 done" in text("#phase")
        assert "12.5 → 20.0 degrees [-90, 90]" in text("#joints")
        loaded = "return document.querySelector('.view img').naturalWidth"
        wait_until(lambda: browser.execute_script(loaded) == 8)
        assert not browser.find_element("class name", "reference").is_displayed()
        robot.references = {"front": encode_png(image)}
        robot.publish(LiveStep({"arm.pos": -30.0, "front": image}), 0.1)
        wait_until(lambda: browser.find_element("class name", "reference").is_displayed())
        wait_until(lambda: "-30.0" in text("#joints"))
        browser.get("about:blank")
    assert browser.get_log("browser") == []
