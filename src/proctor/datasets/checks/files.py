"""Check for files that no episode uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from proctor.datasets.checks.findings import DatasetFinding, FindingLevel, RepairCommands
from proctor.datasets.checks.table import EpisodeTable
from proctor.datasets.format.info import Info, data_file, video_file
from proctor.system.files import UNFINISHED
from proctor.system.links import leaving_links

_NAMED = 3


def check_files(
    root: Path, info: Info, table: EpisodeTable, mends: RepairCommands
) -> Iterator[DatasetFinding]:
    """Check that every data and video file belongs to an episode, is finished, and lies here."""
    named = {
        data_file(root, info, int(chunk), int(file))
        for chunk, file in zip(table.chunk, table.file, strict=True)
    }
    for key, spans in table.spans.items():
        named |= {
            video_file(root, info, key, int(chunk), int(file))
            for chunk, file in zip(spans.chunk, spans.file, strict=True)
        }
    for folder in ("data", "videos"):
        found = (path for path in sorted((root / folder).rglob("*")) if path.is_file())
        yield from _orphaned(root, [path for path in found if path not in named], mends)
    unfinished = sorted((root / "meta").rglob(f"*{UNFINISHED}"))
    yield from _orphaned(root, unfinished, mends)
    for link in leaving_links(root):
        what = "a link that leads out of the dataset, or to a folder: it cannot be edited or pushed"
        where = link.relative_to(root).as_posix()
        yield DatasetFinding(FindingLevel.WARNING, "files.link", what, where, mends.remove([link]))
    pictures = root / "images"
    if any(path.is_file() for path in pictures.rglob("*")):  # LeRobot leaves the empty folder
        what = "images of an episode that was not finished: readers ignore them"
        mend = mends.remove([pictures])
        yield DatasetFinding(FindingLevel.WARNING, "files.unfinished", what, "images", mend)


def _orphaned(root: Path, paths: list[Path], mends: RepairCommands) -> Iterator[DatasetFinding]:
    if not paths:
        return
    names = [path.relative_to(root).as_posix() for path in paths[:_NAMED]]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    what = "no episode is in this file" if len(paths) == 1 else "no episode is in these files"
    where = ", ".join(names) + more
    yield DatasetFinding(FindingLevel.WARNING, "files.orphaned", what, where, mends.remove(paths))
