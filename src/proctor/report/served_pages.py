"""The pages that are served: runs and trainings, each followed while it goes on, and their list."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.report.compare_data import compare_data
from proctor.report.comparison import Comparison, Criteria, compare_all
from proctor.report.document import document_html
from proctor.report.page import page_html
from proctor.report.page_data import page_data
from proctor.report.run import Run, load_run
from proctor.report.run_list import (
    CSV_FILE,
    FILES,
    RECORDS,
    check_inside,
    check_training_inside,
    encodable_text,
    list_data,
    served_files,
    url_path,
)
from proctor.report.site import Answer, Page, Video
from proctor.report.training_data import read_training_folder, training_data
from proctor.report.training_page import training_html
from proctor.runs.folder import RUN_FILE
from proctor.runs.journal import JOURNAL_FILE, VIDEO_FOLDER
from proctor.runs.training import LOG_FILE, RECORD_FILE
from proctor.system.files import MAX_JOURNAL_BYTES, read_regular_file
from proctor.system.locks import is_locked

_LOOK_EVERY_S = 2.0
_MOST_OF_THE_TIME = 0.05
_COMPARE = "/compare"


@dataclass(frozen=True)
class RunSite:
    """The run or training in ``root``, or the list of those below it."""

    root: Path

    def answer(self, path: str, target: Path, query: Mapping[str, Sequence[str]]) -> Answer:
        """Return a page, a version, a file of a run or a video; nothing else is served."""
        if path == _COMPARE and not (self.root / RUN_FILE).exists():
            return Page(comparison_page(self.root, query.get("run", ())))
        if not target.is_relative_to(self.root):
            return None
        if path.endswith("/"):
            return self._page(target)
        if any((target.parent / name).is_file() for name in RECORDS):
            if target.name == "version":
                return Page(version_of(target.parent), "text/plain")
            if target.name in (*FILES, CSV_FILE):
                return self._file(target)
        return Video(target) if target.suffix == ".mp4" and target.is_file() else None

    def _page(self, folder: Path) -> Answer:
        if (folder / RUN_FILE).is_file():
            check_inside(folder, self.root)
            return Page(live_page(folder, listed=folder != self.root))
        if (folder / RECORD_FILE).is_file():
            check_training_inside(folder, self.root)
            return Page(live_training_page(folder, listed=folder != self.root))
        return Page(list_page(self.root)) if folder == self.root else None

    def _file(self, target: Path) -> Answer:
        check_inside(target.parent, self.root)
        if target.name == CSV_FILE:
            return Page(load_run(target.parent).to_csv(), "text/csv")
        return Page(
            read_regular_file(target, MAX_JOURNAL_BYTES).decode(errors="replace"),
            FILES[target.name],
        )


def list_page(root: Path) -> str:
    """Return the page that lists the runs below ``root``."""
    return document_html("runs", list_data(root), styles=("page.css", "runs.css"))


def comparison_page(root: Path, places: Sequence[str]) -> str:
    """Return the comparison of the runs at ``places``, of which the first is the reference.

    Episode by episode where they have episodes in common, else as separate samples.

    Raises:
        UsageError: there are no two runs there, or they cannot be compared.
        RunFolderError: a link leads out of the folder.
    """
    folders = [_run_at(root, place) for place in places]
    if len(folders) < 2:
        raise UsageError("choose two runs of the list to compare", code="run.too-few")
    runs = [load_run(folder).require_rate() for folder in folders]
    values = compare_data(runs, _comparisons(runs), root, gate=False)
    sides = [values["a"], *(section["b"] for section in values["comparisons"])]
    for folder, side in zip(folders, sides, strict=True):
        place = folder.relative_to(root).as_posix()
        side |= {"report": url_path(place), "path": encodable_text(place)}
    values["list"] = "/"
    return document_html("compare", values, styles=("page.css", "compare.css"))


def _run_at(root: Path, place: str) -> Path:
    try:
        folder = (root / place.strip("/")).resolve()
        found = folder.is_relative_to(root) and (folder / RUN_FILE).is_file()
    except (ValueError, OSError, RuntimeError):  # nothing can be called so, or links in a circle
        found = False
    if not found:
        raise UsageError(
            f"{place} is no run: only runs of the list can be compared", code="run.not-found"
        )
    check_inside(folder, root)
    return folder


def _comparisons(runs: Sequence[Run]) -> list[Comparison]:
    try:
        return compare_all(runs, Criteria())
    except UsageError:
        return compare_all(runs, Criteria(paired=False))


def live_page(folder: Path, *, listed: bool = False) -> str:
    """Return the run's page, one that looks for news while the run goes on.

    ``listed``: it is one of several, and there is a way back to their list.

    Raises:
        OSError: the run was removed meanwhile.
    """
    version, begun_s = version_of(folder), time.thread_time()
    run = load_run(folder)
    values = page_data(run, running=run.running)
    return page_html(values | _served(folder, listed=listed) | _following(version, begun_s))


def live_training_page(folder: Path, *, listed: bool = False) -> str:
    """Return the training's page, one that looks for news while it goes on; raises as above."""
    version, begun_s = version_of(folder), time.thread_time()
    values = training_data(read_training_folder(folder), folder, running=is_locked(folder))
    return training_html(values | _served(folder, listed=listed) | _following(version, begun_s))


def _served(folder: Path, *, listed: bool) -> dict[str, Any]:
    return {"folder": ".", "files": served_files(folder), "list": "/" if listed else None}


def _following(version: str, begun_s: float) -> dict[str, Any]:
    every_s = refresh_interval_s(time.thread_time() - begun_s)
    return {"live": version, "look_every_s": every_s}


def refresh_interval_s(made_in_s: float) -> float:
    """Return how often a page looks for news that takes so much CPU time to make.

    The cores belong to the evaluation, which is to keep nearly all of their time: the page of
    10,000 episodes takes a third of a second.
    """
    return max(_LOOK_EVERY_S, made_in_s / _MOST_OF_THE_TIME)


def version_of(folder: Path) -> str:
    """Return what changes with every episode that ends or video that is made, with every line of a
    training's log, and when its process ends."""
    is_run = (folder / RUN_FILE).is_file()
    record, log = (RUN_FILE, JOURNAL_FILE) if is_run else (RECORD_FILE, LOG_FILE)
    written = (folder / record).stat().st_mtime_ns
    films = sum(1 for _ in folder.glob(f"{VIDEO_FOLDER}/*/*.mp4"))
    return f"{_size(folder / log)}-{written}-{films}-{int(is_locked(folder))}"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
