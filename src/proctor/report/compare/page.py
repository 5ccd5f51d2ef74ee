"""The comparison page: differences between runs, with videos side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from proctor.report.compare.comparison import Comparison
from proctor.report.compare.data import compare_data
from proctor.report.html.document import document_html
from proctor.report.run.run import Run
from proctor.runs.folder import write_run_file

COMPARE_FILE = "compare.html"
_STYLES = ("robustness/robustness.css", "compare/page.css")


def write_compare_page(
    runs: Sequence[Run],
    comparisons: Sequence[Comparison],
    output: Path | None = None,
    *,
    gate: bool = False,
) -> Path:
    """Write the page that compares the other runs with the first, and return its path.

    The default ``output`` is in the folder of the second run.
    """
    output = output or runs[1].path / COMPARE_FILE
    values = compare_data(runs, comparisons, output.parent, gate=gate)
    write_run_file(output, document_html("compare/page", values, styles=_STYLES))
    return output
