"""``proctor data VERB``: inspect, check, edit and convert datasets (``commands/shared/verbs``)."""

from __future__ import annotations

from proctor.commands.shared.verbs import run_verb


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_verb("data", words)
