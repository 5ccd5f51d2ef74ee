"""``proctor benchmarks VERB``: install benchmarks that need an interpreter of their own."""

from __future__ import annotations

from proctor.commands.shared.verbs import run_verb


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_verb("benchmarks", words)
