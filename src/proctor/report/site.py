"""What a server of pages serves: a site turns an address into a page, a file or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias


@dataclass(frozen=True)
class Page:
    """An answer that is made when it is asked for."""

    content: str | bytes
    kind: str = "text/html"


@dataclass(frozen=True)
class Video:
    """An answer that is a file, of which a player asks for parts."""

    path: Path


Answer: TypeAlias = Page | Video | None


class Site(Protocol):
    """All that is served. Called by several threads at a time."""

    @property
    def root(self) -> Path:
        """The folder that addresses are below."""

    def answer(self, path: str, target: Path, query: Mapping[str, Sequence[str]]) -> Answer:
        """Return what to send for an address; ``target`` is the file it names, maybe outside.

        ``query`` is what stands after the question mark.

        Raises:
            ProctorError: there is something, but not to be had; its text is sent.
            OSError: it is gone.
        """
