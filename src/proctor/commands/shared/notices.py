"""Prints the warnings and notes of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.errors import strip_control_codes

if TYPE_CHECKING:
    from rich.console import Console

    from proctor.evaluation.notices import Notices


def print_notices(notices: Notices, console: Console) -> None:
    """Print warnings, then notes, one line each."""
    for warning in notices.warnings:
        line = strip_control_codes(f"warning: {warning}")
        console.print(line, style="bold red", soft_wrap=True, markup=False)
    for note in notices.notes:
        console.print(
            strip_control_codes(f"note: {note}"), highlight=False, soft_wrap=True, markup=False
        )
