"""Write llms.txt: the site's pages in the order of its navigation, for assistants.

The format is that of llmstxt.org: a title, a summary, and a list of links with one sentence each.
The links go to the Markdown sources, which `make docs` copies beside the pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

NAVIGATION = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)
SENTENCE_END = re.compile(r"(?<=[.!?])\s")


def write(docs: Path, site: Path) -> None:
    """Write ``llms.txt`` into the built site, and copy every page's Markdown source there."""
    (site / "llms.txt").write_text("\n".join(lines(docs)) + "\n", encoding="utf-8")
    for page in pages(docs):
        target = site / page.relative_to(docs)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")


def lines(docs: Path) -> Iterator[str]:
    """Yield the lines of ``llms.txt``."""
    index = docs / "index.md"
    yield from (f"# {title(index)}", "", f"> {summary(index)}")
    for caption, names in sections(index):
        yield from ("", f"## {caption}", "")
        for name in names:
            yield from entries(docs / f"{name}.md", docs)


def entries(page: Path, docs: Path) -> Iterator[str]:
    """Yield the line of a page, then those of the pages below it."""
    yield f"- [{title(page)}]({page.relative_to(docs).as_posix()}): {summary(page)}"
    for _, names in sections(page):
        for name in names:
            yield from entries(page.parent / f"{name}.md", docs)


def pages(docs: Path) -> list[Path]:
    """Return the pages that ``llms.txt`` links to."""
    links = re.findall(r"^- \[.*?\]\(([^)]+)\)", "\n".join(lines(docs)), re.MULTILINE)
    return [docs / link for link in links]


def sections(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the caption and the page names of each table of contents of ``page``."""
    for body in NAVIGATION.findall(page.read_text(encoding="utf-8")):
        caption = re.search(r"^:caption: (.*)$", body, re.MULTILINE)
        names = [line for line in body.splitlines() if line and not line.startswith(":")]
        yield (caption[1] if caption else ""), names


def title(page: Path) -> str:
    """Return a page's first heading."""
    found = re.search(r"^# (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f"{page} has no heading")
    return found[1].replace("`", "")


def summary(page: Path) -> str:
    """Return the first sentence of a page's text, without links and code marks."""
    for block in page.read_text(encoding="utf-8").split("\n\n"):
        if not re.match(r"[#\s|<!:{\[(-]|```", block):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
            return SENTENCE_END.split(text)[0].replace("`", "")
    return title(page)
