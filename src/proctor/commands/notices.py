"""How commands print the notices of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from proctor.evaluation.notices import Notices


def print_notices(notices: Notices, console: Console) -> None:
    """Print warnings, then notes, a line each."""
    for warning in notices.warnings:
        line = one_line(f"warning: {warning}")
        console.print(line, style="bold red", soft_wrap=True, markup=False)
    for note in notices.notes:
        console.print(one_line(f"note: {note}"), highlight=False, soft_wrap=True, markup=False)
