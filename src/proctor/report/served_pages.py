"""The pages that are served: the list of runs and trainings, and a page of each that follows it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from proctor.errors import ProctorError, RunFolderError
from proctor.report.document import inline_page, markup
from proctor.report.page import page_html
from proctor.report.page_data import page_data, read_run, title
from proctor.report.site import Answer, Page, Video
from proctor.report.summary import tally
from proctor.report.training_data import (
    TrainingContent,
    read_training_folder,
    training_data,
    training_title,
)
from proctor.report.training_page import training_html
from proctor.runs.finding import runs_below
from proctor.runs.folder import RUN_FILE
from proctor.runs.journal import JOURNAL_FILE, VIDEO_FOLDER
from proctor.runs.training import EVALUATIONS, LOG_FILE, RECORD_FILE
from proctor.stats.anytime import watched

_RECORDS = (RUN_FILE, RECORD_FILE)
_LOOK_EVERY_S = 2.0
_MOST_OF_THE_TIME = 0.05


@dataclass(frozen=True)
class RunSite:
    """The run or training in ``root``, or the list of those below it."""

    root: Path

    def answer(self, path: str, target: Path) -> Answer:
        """Return a page, a version or a video; nothing else is served."""
        if not target.is_relative_to(self.root):
            return None
        if path.endswith("/") and (target / RUN_FILE).is_file():
            check_inside(target, self.root)
            return Page(live_page(target))
        if path.endswith("/") and (target / RECORD_FILE).is_file():
            check_training_inside(target, self.root)
            return Page(live_training_page(target))
        if target == self.root and path == "/":
            return Page(list_page(self.root))
        if target.name == "version" and any((target.parent / name).is_file() for name in _RECORDS):
            return Page(version_of(target.parent), "text/plain")
        return Video(target) if target.suffix == ".mp4" and target.is_file() else None


def list_page(root: Path) -> str:
    """Return the page that lists the runs below ``root``."""
    rows = "".join(_list_row(root, run) for run in runs_below(root, _RECORDS))
    head = "<tr><th>Run</th><th>What</th><th>Success</th><th>Done</th></tr>"
    body = f"<table class='log'>{head}{rows}</table>" if rows else "<p>No runs here yet.</p>"
    heading = f"Runs in {root.name}"
    header = f"<header><h1>{markup(heading)}</h1></header>"
    return inline_page(heading, f"{header}<main>{body}</main>")


def _list_row(root: Path, folder: Path) -> str:
    place = folder.relative_to(root).as_posix()
    try:
        cells = _cells(root, folder)
    except FileNotFoundError:
        return ""  # removed while we looked
    except ProctorError as error:
        return f"<tr><td>{markup(place)}</td><td colspan='3'>{markup(str(error))}</td></tr>"
    return f"<tr><td><a href='/{quote(os.fsencode(place))}/'>{markup(place)}</a></td>{cells}</tr>"


def _cells(root: Path, folder: Path) -> str:
    """Return what a run or training is, how well it did and how far it is, as markup."""
    badge = ""
    if (folder / RUN_FILE).is_file():
        check_inside(folder, root)
        run = read_run(folder)
        what, rate = title(run.record), str(tally(run.rows, watched(run.record.resolved).overall))
        done, planned, unit = len(run.rows), run.record.planned_episodes, "episodes"
    else:
        check_training_inside(folder, root)
        training = read_training_folder(folder)
        badge = "<span class='tag'>training</span> "
        what, rate = training_title(training.record), _best_rate(training)
        done, planned, unit = training.step, training.planned, "steps"
    far = f"{done} of {planned} {unit}" if planned is not None else f"{done} {unit}"
    return f"<td>{badge}{markup(what)}</td><td>{markup(rate)}</td><td>{markup(far)}</td>"


def _best_rate(training: TrainingContent) -> str:
    best = training.best
    if best is None:
        return "n/a"
    ends = "" if best.interval is None else " [{:.1f}, {:.1f}]".format(*best.interval)
    return f"{best.pc_success:.1f}%{ends} n={best.episodes}, best, at step {best.step}"


def check_inside(folder: Path, root: Path) -> None:
    """Refuse a run that is not below ``root``, or of which a link leads out of it.

    Raises:
        RunFolderError: naming what leads out.
        FileNotFoundError: the run is gone.
    """
    links = [path for path in folder.iterdir() if path.is_symlink()]
    links += [path for path in folder.glob(f"{VIDEO_FOLDER}/*") if path.is_symlink()]
    for path in [folder, *links]:
        if not Path(os.path.realpath(path)).is_relative_to(root):
            raise RunFolderError(f"{path.name} is a link that leads out of the folder")


def check_training_inside(folder: Path, root: Path) -> None:
    """Refuse a training that is not below ``root``, or of which a link leads out of it.

    Raises:
        RunFolderError: naming what leads out.
        FileNotFoundError: it is gone.
    """
    check_inside(folder, root)
    for run in (folder / EVALUATIONS).glob(f"*/{RUN_FILE}"):
        check_inside(run.parent, root)


def live_page(folder: Path) -> str:
    """Return the run's page, one that looks for news while the run goes on.

    Raises:
        OSError: the run was removed meanwhile.
    """
    version, begun_s = version_of(folder), time.thread_time()
    return page_html(page_data(read_run(folder)) | _following(version, begun_s))


def live_training_page(folder: Path) -> str:
    """Return the training's page, one that looks for news while it goes on; raises as above."""
    version, begun_s = version_of(folder), time.thread_time()
    values = training_data(read_training_folder(folder), folder)
    return training_html(values | _following(version, begun_s))


def _following(version: str, begun_s: float) -> dict[str, Any]:
    every_s = look_every_s(time.thread_time() - begun_s)
    return {"folder": ".", "live": version, "look_every_s": every_s}


def look_every_s(made_in_s: float) -> float:
    """Return how often a page looks for news that takes so much CPU time to make.

    The cores belong to the evaluation, which is to keep nearly all of their time: the page of
    10,000 episodes takes a third of a second.
    """
    return max(_LOOK_EVERY_S, made_in_s / _MOST_OF_THE_TIME)


def version_of(folder: Path) -> str:
    """Return what changes with every episode that ends, or every line of a training's log."""
    is_run = (folder / RUN_FILE).is_file()
    record, log = (RUN_FILE, JOURNAL_FILE) if is_run else (RECORD_FILE, LOG_FILE)
    try:
        size = (folder / log).stat().st_size
    except FileNotFoundError:
        size = 0
    return f"{size}-{(folder / record).stat().st_mtime_ns}"
