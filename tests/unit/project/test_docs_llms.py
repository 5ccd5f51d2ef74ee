"""llms.txt lists every page of the site with one sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import docs_llms


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "guides").mkdir()
    index = "# Site\n\nAll about it.\n\n```{toctree}\n:caption: Guides\n\nguides/one\n```\n"
    (tmp_path / "index.md").write_text(index)
    one = "# Do `one` thing\n\n    proctor eval\n\nRun [this](x.md) first. Then that.\n"
    (tmp_path / "guides" / "one.md").write_text(f"{one}\n```{{toctree}}\n:hidden:\n\ntwo\n```\n")
    (tmp_path / "guides" / "two.md").write_text("# Two\n")
    return tmp_path


def test_pages_are_listed_in_the_order_of_the_navigation(docs: Path) -> None:
    assert list(docs_llms.lines(docs)) == [
        "# Site", "", "> All about it.", "", "## Guides", "",
        "- [Do one thing](guides/one.md): Run this first.",
        "- [Two](guides/two.md): Two",
    ]  # fmt: skip


def test_the_markdown_sources_are_copied_beside_the_pages(docs: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    docs_llms.write(docs, site)
    assert (site / "guides" / "two.md").read_text() == "# Two\n"
    assert "guides/one.md" in (site / "llms.txt").read_text()


def test_a_summary_may_begin_with_code_and_contain_a_colon(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```bash\nproctor eval\n```\n\n`97%` means: much. More.\n")
    assert docs_llms.summary(page) == "97% means: much."
