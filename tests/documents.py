"""The pages of the documentation, without those that `make docs` generates or builds."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = {DOCS / "reference/error_codes.md", DOCS / "reference/commands"}
"""Pages that scripts/docs_reference.py writes from code, and their folder."""


def is_generated(page: Path) -> bool:
    """Return whether `make docs` writes a page from code."""
    return bool(GENERATED & {page, page.parent})


def site_pages() -> list[Path]:
    """Return the written pages of the documentation site."""
    pages = [page for page in sorted(DOCS.rglob("*.md")) if DOCS / "_build" not in page.parents]
    return [page for page in pages if not is_generated(page)]


def all_pages() -> list[Path]:
    """Return the site's written pages, then the README and the others beside it."""
    return [*site_pages(), *sorted(ROOT.glob("*.md"))]
