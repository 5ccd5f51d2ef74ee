"""Write the report page of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proctor.report.html.document import document_html
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.report.server.run_list import viewable_files
from proctor.runs.folder import write_run_file

REPORT_FILE = "report.html"


def write_page(folder: Path, output: Path | None = None) -> Path:
    """Write the page of the run in ``folder`` and return its path."""
    output = output or folder / REPORT_FILE
    run = page_data(load_run(folder))
    # The path from the page to the run folder, where the videos are.
    relative = Path(os.path.relpath(folder, output.parent)).as_posix()
    run |= {"folder": relative, "files": viewable_files(folder)}
    write_run_file(output, page_html(run))
    return output


def page_html(run: Mapping[str, Any]) -> str:
    """Return the page that shows ``run``, the values of ``page_data``."""
    styles = ("run/failures.css", "robustness/robustness.css")
    scripts = ("html/labels.js", "run/failures.js", "robustness/robustness.js")
    return document_html("run/page", run, styles=styles, scripts=scripts)
