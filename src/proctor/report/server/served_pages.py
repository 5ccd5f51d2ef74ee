"""The served site: pages of runs and trainings that update while they run, and their list."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from proctor.errors import UsageError
from proctor.report.compare.comparison import Comparison, Criteria, compare_all
from proctor.report.compare.data import compare_data
from proctor.report.html.document import document_html
from proctor.report.run.page import page_html
from proctor.report.run.page_data import page_data
from proctor.report.run.run import Run, load_run
from proctor.report.server.run_list import (
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
from proctor.report.server.site import Answer, Page, Video
from proctor.report.training.data import read_training_folder, training_data
from proctor.report.training.page import training_html
from proctor.runs.folder import RUN_FILE
from proctor.runs.journal import JOURNAL_FILE, VIDEO_FOLDER, read_journal
from proctor.runs.jsonl import UNREADABLE
from proctor.runs.labels import LabelRecord, append_label
from proctor.runs.training import LOG_FILE, RECORD_FILE
from proctor.system import clock
from proctor.system.files import MAX_JOURNAL_BYTES, read_regular_file
from proctor.system.locks import is_locked

_MIN_REFRESH_S = 2.0
_MAX_CPU_SHARE = 0.05
"""Share of a core that updates of a page may use."""
_COMPARE = "/compare"


@dataclass(frozen=True)
class RunSite:
    """Serves the run or training in ``root``, or the list of runs below it."""

    root: Path
    editable: bool = False
    """Whether pages can save labels: the server is on a loopback address."""

    def answer(self, path: str, target: Path, query: Mapping[str, Sequence[str]]) -> Answer:
        """Return a page, a version, a viewable file or a video; None for anything else."""
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

    def post(self, path: str, target: Path, body: bytes) -> Page | None:
        """Save the labels of an episode: POST RUN/labels."""
        folder = target.parent
        if target.name != "labels" or not target.is_relative_to(self.root):
            return None
        if not (folder / RUN_FILE).is_file():
            return None
        check_inside(folder, self.root)
        save_labels(folder, body)
        return Page("saved", "text/plain")

    def _page(self, folder: Path) -> Answer:
        if (folder / RUN_FILE).is_file():
            check_inside(folder, self.root)
            return Page(live_page(folder, listed=folder != self.root, editable=self.editable))
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


def save_labels(folder: Path, body: bytes) -> None:
    """Save the labels that a page sent for one episode of a run."""
    try:
        sent = msgspec.json.decode(body, type=LabelRecord)
    except UNREADABLE as error:
        raise UsageError(f"not a label: {error}", code="label.invalid") from None
    if not any(row.key == sent.key for row in read_journal(folder).rows):
        raise UsageError("the run has no such episode", code="label.no-such-episode")
    append_label(folder, replace(sent, time=clock.now()))


def list_page(root: Path) -> str:
    """Return the page that lists the runs below ``root``."""
    return document_html("server/runs", list_data(root), styles=("server/runs.css",))


def comparison_page(root: Path, relatives: Sequence[str]) -> str:
    """Return the page that compares the runs at ``relatives`` with the first of them.

    Episodes are paired if the runs share any, otherwise the runs are independent samples.
    """
    folders = [_run_at(root, relative) for relative in relatives]
    if len(folders) < 2:
        raise UsageError("choose two runs of the list to compare", code="run.too-few")
    runs = [load_run(folder).require_rate() for folder in folders]
    values = compare_data(runs, _comparisons(runs), root, gate=False)
    sides = [values["a"], *(section["b"] for section in values["comparisons"])]
    for folder, side in zip(folders, sides, strict=True):
        relative = folder.relative_to(root).as_posix()
        side |= {"report": url_path(relative), "path": encodable_text(relative)}
    values["list"] = "/"
    return document_html("compare/page", values, styles=("compare/page.css",))


def _run_at(root: Path, relative: str) -> Path:
    try:
        folder = (root / relative.strip("/")).resolve()
        found = folder.is_relative_to(root) and (folder / RUN_FILE).is_file()
    except (ValueError, OSError, RuntimeError):  # not a file name, or a cycle of symlinks
        found = False
    if not found:
        raise UsageError(f"{relative} is not a run; choose runs of the list", code="run.not-found")
    check_inside(folder, root)
    return folder


def _comparisons(runs: Sequence[Run]) -> list[Comparison]:
    try:
        return compare_all(runs, Criteria())
    except UsageError:
        return compare_all(runs, Criteria(paired=False))


def live_page(folder: Path, *, listed: bool = False, editable: bool = False) -> str:
    """Return the page of a run; it updates itself while the run continues.

    ``listed``: the page links back to the list of runs. ``editable``: the page can save labels.

    Raises:
        OSError: the run was removed meanwhile.
    """
    version, begun_s = version_of(folder), time.thread_time()
    run = load_run(folder)
    values = page_data(run, running=run.running) | {"editable": editable}
    return page_html(values | _served(folder, listed=listed) | _following(version, begun_s))


def live_training_page(folder: Path, *, listed: bool = False) -> str:
    """Return the page of a training; it updates itself. ``listed`` and errors as ``live_page``."""
    version, begun_s = version_of(folder), time.thread_time()
    values = training_data(read_training_folder(folder), folder, running=is_locked(folder))
    return training_html(values | _served(folder, listed=listed) | _following(version, begun_s))


def _served(folder: Path, *, listed: bool) -> dict[str, Any]:
    return {"folder": ".", "files": served_files(folder), "list": "/" if listed else None}


def _following(version: str, begun_s: float) -> dict[str, Any]:
    every_s = refresh_interval_s(time.thread_time() - begun_s)
    return {"live": version, "look_every_s": every_s}


def refresh_interval_s(made_in_s: float) -> float:
    """Return the seconds between updates of a page, given the CPU seconds to make it.

    The evaluation needs the cores: the page of 10,000 episodes takes about a second.
    """
    return max(_MIN_REFRESH_S, made_in_s / _MAX_CPU_SHARE)


def version_of(folder: Path) -> str:
    """Return a text that changes with each episode, video or log row and at the end of a run."""
    is_run = (folder / RUN_FILE).is_file()
    record, log = (RUN_FILE, JOURNAL_FILE) if is_run else (RECORD_FILE, LOG_FILE)
    written = (folder / record).stat().st_mtime_ns
    videos = sum(1 for _ in folder.glob(f"{VIDEO_FOLDER}/*/*.mp4"))
    return f"{_size(folder / log)}-{written}-{videos}-{int(is_locked(folder))}"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
