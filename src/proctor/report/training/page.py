"""The page of a training, as a file in its folder or served while it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proctor.report.html.document import document_html
from proctor.report.run.page import REPORT_FILE
from proctor.report.server.run_list import viewable_files
from proctor.report.training.data import read_training_folder, training_data
from proctor.runs.folder import write_run_file


def write_training_page(folder: Path, output: Path | None = None) -> Path:
    """Write the page of the training in ``folder`` and return its path."""
    output = output or folder / REPORT_FILE
    values = training_data(read_training_folder(folder), folder)
    values["folder"] = Path(os.path.relpath(folder, output.parent)).as_posix()
    values["files"] = viewable_files(folder)
    write_run_file(output, training_html(values))
    return output


def training_html(values: Mapping[str, Any]) -> str:
    """Return the page that shows ``values``: those of ``training_data``, folder and files."""
    return document_html("training/page", values, styles=("training/page.css",))
