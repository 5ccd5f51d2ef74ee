"""``proctor.load_run`` and ``proctor.compare``: read what runs wrote."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from proctor.api.arguments import plain, refuse_unknown
from proctor.commands.evaluation.compare import CompareCommand
from proctor.errors import ProctorWarning, UsageError
from proctor.report.compare.comparison import Comparison, Criteria, compare_all
from proctor.report.run import run as runs
from proctor.report.run.results import Results
from proctor.report.run.run import Run
from proctor.report.training.run import Training, load_training
from proctor.runs.folder import RUN_FILE
from proctor.runs.training import RECORD_FILE


def load_run(folder: str | Path) -> Run | Training:
    """Read the folder of an evaluation, a recording or a training, finished or not.

    Args:
        folder: the folder of the run (its ``--output_dir``).

    Returns:
        a ``Training`` if a training wrote the folder, else a ``Run``.

    Raises:
        UsageError: it is not a run folder.
        RunFolderError: its files are damaged.
    """
    path = Path(folder).expanduser()
    if (path / RECORD_FILE).is_file() and not (path / RUN_FILE).exists():
        return load_training(path)
    return runs.load_run(path)


def compare(
    a: str | Path | Results,
    b: str | Path | Results,
    *more: str | Path | Results,
    alpha: float = 0.05,
    paired: bool = True,
    fail_if_worse: float = 0.0,
    **unknown: Any,
) -> Comparison | list[Comparison]:
    """Compare runs with the first one, as ``proctor compare`` does.

    The warnings of the command line are issued as ``ProctorWarning``. No page is written.

    Args:
        a: the reference: a run folder, or what ``evaluate`` or ``load_run`` returned.
        b: the run to compare with it.
        more: further runs to compare with ``a``; p-values are corrected for their number.
        alpha: significance level of all tests; intervals cover 1 - alpha (``--alpha``).
        paired: pair episodes of the same task, seed and initial state. False compares tasks as
            independent samples, for runs with other seeds (``--unpaired``).
        fail_if_worse: a run ``is_worse`` if its success rate is lower by more than this
            (``--fail-if-worse``).
        unknown: refused, with the nearest known argument.

    Returns:
        one comparison; with ``more`` runs, a list with one for each run after the first.

    Raises:
        UsageError: the runs share no episodes, or a folder is not a run folder.
    """
    refuse_unknown("compare", unknown, ("alpha", "paired", "fail_if_worse"))
    paths = [_run_path(run) for run in (a, b, *more)]
    alpha, fail_if_worse = plain(alpha), plain(fail_if_worse)
    CompareCommand(
        runs=paths, alpha=alpha, fail_if_worse=fail_if_worse, unpaired=not paired
    ).validate()
    criteria = Criteria(alpha, fail_if_worse, paired=bool(paired))
    comparisons = compare_all([runs.load_run(path).require_rate() for path in paths], criteria)
    for comparison in comparisons:
        for warning in comparison.warnings:
            warnings.warn(warning, ProctorWarning, stacklevel=2)
    return comparisons if more else comparisons[0]


def _run_path(run: str | Path | Results) -> Path:
    path = run.path if isinstance(run, Results) else run
    if not isinstance(path, str | Path):
        raise UsageError(
            f"{run!r:.60} is not a run; pass its folder, or what evaluate() or load_run() returned",
            code="flag.invalid-value",
        )
    path = Path(path).expanduser()
    if path.is_file():
        raise UsageError(
            f"{path} is a file, and compare() compares run folders; a result card is checked by "
            "the command: proctor compare CARD RUN",
            code="argument.order",
        )
    return path
