"""JSON values of the page that lists the runs and trainings below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from proctor.errors import ProctorError, RunFolderError
from proctor.report.html.formatting import rounded, utc_date
from proctor.report.run.page_data import title
from proctor.report.run.run import load_run
from proctor.report.run.status import status_of
from proctor.report.training.data import TrainingContent, read_training_folder, training_title
from proctor.runs.discovery import find_runs
from proctor.runs.folder import EVAL_INFO_FILE, RUN_FILE
from proctor.runs.journal import JOURNAL_FILE, VIDEO_FOLDER
from proctor.runs.labels import LABELS_FILE
from proctor.runs.training import EVALUATIONS, LOG_FILE, RECORD_FILE
from proctor.system.locks import is_locked

RECORDS = (RUN_FILE, RECORD_FILE)
FILES = {
    RUN_FILE: "application/json",
    EVAL_INFO_FILE: "application/json",
    JOURNAL_FILE: "text/plain",
    "workers.log": "text/plain",
    LABELS_FILE: "text/plain",
    RECORD_FILE: "application/json",
    LOG_FILE: "text/plain",
}
"""Files of a run folder that are served as they are. Never HTML, whose origin is unknown."""
CSV_FILE = "episodes.csv"
"""Generated on request."""


def list_data(root: Path) -> dict[str, Any]:
    """Return the values of the page that lists the runs below ``root``."""
    return {
        "title": f"Runs in {encodable_text(root.name)}",
        "runs": [row for folder in find_runs(root, RECORDS) for row in _rows(root, folder)],
    }


def _rows(root: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the row of one folder; none if it was removed meanwhile."""
    relative = folder.relative_to(root).as_posix()
    line = {"place": encodable_text(relative), "href": url_path(relative)}
    try:
        is_run = (folder / RUN_FILE).is_file()
        values = _run(root, folder) if is_run else _training(root, folder)
        yield line | values | {"files": served_files(folder), "error": None}
    except FileNotFoundError:
        return
    except (ProctorError, OSError) as error:
        yield line | {"error": encodable_text(str(error))}


def _run(root: Path, folder: Path) -> dict[str, Any]:
    check_inside(folder, root)
    run = load_run(folder)
    record, added = run.record, run.tally
    done = run.n_done
    status = status_of(
        done, record.planned_episodes, running=run.running, stopped=run.stopped is not None
    )
    return {
        "kind": "recording" if record.is_recording else "run",
        "what": title(record),
        "rate": rounded(added.rate, 6),
        "result": str(added),
        **_started(record.sessions),
        "done": done,
        "planned": record.planned_episodes,
        "unit": run.unit,
        "status": status.value,
    }


def _training(root: Path, folder: Path) -> dict[str, Any]:
    check_training_inside(folder, root)
    training = read_training_folder(folder)
    best = training.best
    status = status_of(training.step, training.planned, running=is_locked(folder))
    return {
        "kind": "training",
        "what": training_title(training.record),
        "rate": None if best is None else rounded((best.pc_success or 0.0) / 100, 6),
        "result": _best_rate(training),
        **_started(training.record.sessions),
        "done": training.step,
        "planned": training.planned,
        "unit": "steps",
        "status": status.value,
    }


def _started(sessions: list[float]) -> dict[str, Any]:
    first = sessions[0] if sessions else None
    return {"started": first, "date": None if first is None else utc_date(first)}


def _best_rate(training: TrainingContent) -> str:
    best = training.best
    if best is None:
        return "n/a"
    return f"{best.rate_text}, best, at step {best.step}"


def viewable_files(folder: Path) -> list[str]:
    """Return the names of the non-empty files of a run that can be viewed."""
    files = (name for name in FILES if (folder / name).is_file())
    return [name for name in files if (folder / name).stat().st_size]


def served_files(folder: Path) -> list[str]:
    """Return the viewable files, and the CSV of episodes that the server generates."""
    files = viewable_files(folder)
    return [*files, CSV_FILE] if JOURNAL_FILE in files else files


def encodable_text(text: str) -> str:
    """Return text without lone surrogates, which an undecodable file name has."""
    return text.encode("utf-8", "backslashreplace").decode()


def url_path(relative: str) -> str:
    """Return the URL path of a folder below the served root."""
    return f"/{quote(os.fsencode(relative))}/" if relative != "." else "/"


def check_inside(folder: Path, root: Path) -> None:
    """Refuse a run that is outside ``root``, or that contains a symlink to outside.

    Raises:
        RunFolderError: naming the symlink.
        FileNotFoundError: the run was removed.
    """
    links = [path for path in folder.iterdir() if path.is_symlink()]
    links += [path for path in folder.glob(f"{VIDEO_FOLDER}/*") if path.is_symlink()]
    for path in [folder, *links]:
        if not Path(os.path.realpath(path)).is_relative_to(root):
            raise RunFolderError(
                f"{path.name} is a link that leads out of the folder", code="run.symlink-outside"
            )


def check_training_inside(folder: Path, root: Path) -> None:
    """Refuse a training that is outside ``root``, or that contains a symlink to outside.

    Raises:
        RunFolderError: naming the symlink.
        FileNotFoundError: the training was removed.
    """
    check_inside(folder, root)
    for run in (folder / EVALUATIONS).glob(f"*/{RUN_FILE}"):
        check_inside(run.parent, root)
