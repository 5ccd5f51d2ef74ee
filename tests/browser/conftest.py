"""A real Chromium for tests of pages; without one they are skipped, with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless browser with a light system theme and a log of its console."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="pip install 'proctor[browser]'")
    from selenium.webdriver.chrome.service import Service

    chromium = next(filter(None, map(shutil.which, _NAMES)), None)
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("no Chromium here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # Chromium's own sandbox does not start for root, as in containers.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a file in a window of some width; afterwards the console must be empty."""

    def open_page(path: Path, *, width: int = 1200, dark: bool = False) -> Any:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        browser.get(path.as_uri())
        browser.execute_script("localStorage.clear()")
        browser.refresh()
        return browser

    yield open_page
    assert browser.get_log("browser") == []
