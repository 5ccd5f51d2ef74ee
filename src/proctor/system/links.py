"""Symbolic links in our folders: nothing is written through one, or read outside through one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from proctor.errors import UsageError


def links_below(folder: Path, skipped: Collection[str] = ()) -> Iterator[Path]:
    """Yield the symbolic links below ``folder``, without following any.

    ``skipped`` are names of entries of ``folder`` that are not looked at.
    """
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                if place is folder and entry.name in skipped:
                    continue
                if entry.is_symlink():
                    yield Path(entry.path)
                elif entry.is_dir():
                    waiting.append(Path(entry.path))


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether ``path`` lies in ``folder`` after all links are followed.

    In a download of the Hub, files are links to the blobs of its repository.
    """
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return real.is_relative_to(root) or real.parent == root.parent.parent / "blobs"


def leaving_links(folder: Path) -> Iterator[Path]:
    """Yield the links below ``folder`` to folders, and those to files outside of it."""
    for link in links_below(folder):
        real = Path(os.path.realpath(link))
        if real.is_dir() or real.is_symlink() or not is_inside(link, folder):  # a link: a circle
            yield link


def refuse_links(
    folder: Path, allowed: Collection[Path] = (), skipped: Collection[str] = ()
) -> None:
    """Refuse a folder to be written to in which there is a link that is not ``allowed``."""
    for link in links_below(folder, skipped):
        if link not in allowed:
            raise UsageError(
                f"{link} is a link, and nothing is written through links; remove it, or put what "
                "it points to in its place",
                code="path.link",
            )


def refuse_leaving_links(folder: Path) -> None:
    """Refuse a folder to be copied or uploaded in which a link leads out of it, or to a folder."""
    for link in leaving_links(folder):
        raise UsageError(
            f"{link} is a link that leads out of {folder.name} or to a folder; remove it, or put "
            "what it points to in its place",
            code="path.link-outside",
        )
