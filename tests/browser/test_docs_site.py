"""The built documentation site in Chromium; `make test-docs` builds it first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.documents import DOCS

pytestmark = pytest.mark.site

SITE = DOCS / "_build" / "html"
MADE_BY_SPHINX = {"genindex.html", "py-modindex.html", "search.html"}
ONE_OF_EACH_KIND = (
    "index.html",
    "tutorials/evaluate.html",
    "guides/compare.html",
    "reference/run_folder.html",
    "reference/commands/compare.html",
    "explanation/statistics.html",
)
RULES = ("wcag2a", "wcag2aa")
"""Groups of axe-core's rules: titles, alternative texts, contrast, names of links, keyboard."""
FACTS = """
    const page = document.documentElement;
    const bare = [...document.images].filter((image) => !image.alt || !image.naturalWidth);
    return [document.title, document.querySelectorAll("h1").length,
            bare.map((image) => image.outerHTML), page.lang, page.scrollWidth - page.clientWidth]"""
"""Title, count of h1, images without text or file, language, pixels wider than the window."""
OpenPage = Callable[..., Any]


def pages() -> list[str]:
    found = [str(path.relative_to(SITE)) for path in sorted(SITE.rglob("*.html"))]
    return [name for name in found if name not in MADE_BY_SPHINX and not name.startswith("_")]


def violations(browser: Any) -> list[str]:
    """Return what axe-core finds on the open page: rule, help text, first element."""
    axe = pytest.importorskip("axe_core_python.selenium", reason="pip install 'proctor[browser]'")
    options = {"runOnly": {"type": "tag", "values": list(RULES)}, "resultTypes": ["violations"]}
    browser.set_script_timeout(120)
    found = axe.Axe().run(browser, options=options)["violations"]
    return [f"{rule['id']}: {rule['help']}: {rule['nodes'][0]['html'][:200]}" for rule in found]


def test_the_site_is_built() -> None:
    assert len(pages()) > 40, "run: make docs"


def test_every_page_has_its_own_title_one_heading_texts_for_images_and_fits_a_phone(
    open_page: OpenPage,
) -> None:
    browser = open_page(SITE / "index.html", width=390)
    titles: Counter[str] = Counter()
    faults = []
    for name in pages():
        browser.get((SITE / name).as_uri())
        title, *facts = browser.execute_script(FACTS)
        titles[title] += 1
        if not title or facts != [1, [], "en", 0]:
            faults.append((name, title, *facts))
    assert faults == []
    assert [title for title, count in titles.items() if count > 1] == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_axe_finds_no_fault(open_page: OpenPage, name: str, dark: bool) -> None:
    assert "\n".join(violations(open_page(SITE / name, dark=dark))) == ""


def test_the_search_finds_a_page_by_its_words(open_page: OpenPage) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    browser = open_page(SITE / "index.html")
    with serving(SITE) as address:
        browser.get(f"{address}/search.html?q=resume")
        links = "return [...document.querySelectorAll('#search-results li a')].map((a) => a.href)"
        wanted = "guides/resume.html"

        def is_found(it: Any) -> bool:
            found = it.execute_script(links)
            return any(link.partition("?")[0].endswith(wanted) for link in found)

        WebDriverWait(browser, 60).until(is_found)
        browser.get("about:blank")
        browser.get_log("browser")  # summaries that were still being loaded


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine: a search fetches pages, files cannot."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
