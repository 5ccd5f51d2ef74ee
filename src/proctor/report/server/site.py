"""The interface between the page server and its sites: a site maps a URL to an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable


@dataclass(frozen=True)
class Page:
    """Generated content."""

    content: str | bytes
    kind: str = "text/html"


@dataclass(frozen=True)
class Video:
    """A video file; the player may request byte ranges."""

    path: Path


Answer: TypeAlias = Page | Video | None


class Site(Protocol):
    """Answers requests. Several threads call it at the same time."""

    @property
    def root(self) -> Path:
        """The folder that URL paths are relative to."""

    def answer(self, path: str, target: Path, query: Mapping[str, Sequence[str]]) -> Answer:
        """Return the answer for a URL path; None: not found.

        Args:
            path: the decoded path of the URL.
            target: the file that it names, which may be outside the root.
            query: the query parameters.

        Raises:
            ProctorError: the content cannot be served; the text is sent.
            OSError: the content was removed meanwhile.
        """


@runtime_checkable
class EditableSite(Site, Protocol):
    """A site that also accepts edits, from this machine and with the server's token."""

    def post(self, path: str, target: Path, body: bytes) -> Page | None:
        """Make an edit and return the answer; None: the URL accepts none.

        Args:
            path: the decoded path of the URL.
            target: the file that it names, which may be outside the root.
            body: the JSON text that the page sent, from a page of this server.
        """
