"""No page has a sentence over 35 words; no tutorial or guide has over 250 lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import DOCS, site_pages

MOST_WORDS = 35
MOST_LINES = 250
APPENDIX = DOCS / "measurements.md"
FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1`*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"(`+).+?\1", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
TABLE_ROW = re.compile(r"^ *\|")
HEADING = re.compile(r"^#+ ")
NEW_BLOCK = re.compile(r"^ *(?:#+ |[-*+] |\d+[.)] |> |:::)")
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[A-Z0-9(\"'*_])")
WORD = re.compile(r"\w")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page: code is one word, and links are their text."""
    prose = LINK.sub(r"\1", CODE.sub("CODE", COMMENT.sub("", FENCE.sub("\n", text))))
    for block in blocks(prose):
        yield from SENTENCE_END.split(block)


def blocks(prose: str) -> Iterator[str]:
    """Yield paragraphs, headings, list items and the cells of tables."""
    lines: list[str] = []
    for line in [*prose.splitlines(), ""]:
        if not line.strip() or TABLE_ROW.match(line) or NEW_BLOCK.match(line):
            yield " ".join(lines)
            lines = []
        if TABLE_ROW.match(line):
            yield from (cell.strip() for cell in line.split("|"))
        elif HEADING.match(line):
            yield line
        elif line.strip():
            lines.append(line.strip())


def long_sentences(text: str) -> list[str]:
    """Return the sentences with more than ``MOST_WORDS`` words."""
    return [
        sentence
        for sentence in sentences(text)
        if sum(bool(WORD.search(word)) for word in sentence.split()) > MOST_WORDS
    ]


def checked_pages() -> list[Path]:
    return [page for page in site_pages() if page.parent.name in {"tutorials", "guides"}]


def other_pages() -> list[Path]:
    """Return the pages of reference and explanation: they may be long, their sentences not."""
    others = {*checked_pages(), APPENDIX}
    return [page for page in site_pages() if page not in others]


@pytest.mark.parametrize(
    "page", checked_pages(), ids=lambda page: f"{page.parent.name}/{page.name}"
)
def test_a_page_has_no_long_sentence_and_is_not_long(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert long_sentences(text) == []
    assert len(text.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("page", other_pages(), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_of_reference_or_explanation_has_no_long_sentence(page: Path) -> None:
    assert long_sentences(page.read_text(encoding="utf-8")) == []


def test_a_long_sentence_is_found() -> None:
    long = "Word " * MOST_WORDS + "end"
    assert long_sentences(f"# Title\n\nShort. {long}. Short again.\n") == [f"{long}."]
    assert long_sentences(f"- {long}\n") == [f"- {long}"]
    assert long_sentences(f"| {long} | short |\n") == [long]
    assert len(long_sentences(long.replace(" ", "\n"))) == 1, "a sentence over several lines"


def test_sentences_end_at_full_stops_list_items_and_table_cells() -> None:
    half = "word " * (MOST_WORDS - 5) + "end"
    assert long_sentences(f"{half}. {half.capitalize()}.") == []
    assert long_sentences(f"- {half}\n- {half}\n\n{half}\n# {half}\n") == []
    assert long_sentences(f"| {half} | {half} |\n| {half} | {half} |\n") == []


def test_code_and_the_targets_of_links_are_not_counted() -> None:
    words = "word " * MOST_WORDS
    assert long_sentences(f"```bash\n{words} more\n```\n\n  ```text\n  {words} more\n  ```\n") == []
    assert long_sentences(f"<!-- {words} more -->\n") == []
    assert long_sentences("Run `" + words + "more` and see [this](" + words + "more).") == []
    assert len(long_sentences(f"See [{words}more](x.md).")) == 1
