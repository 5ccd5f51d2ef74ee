"""``proctor audit``: run a sample of finished episodes again, alone, and compare."""

from __future__ import annotations

from pathlib import Path

from proctor.commands.eval import (
    EXIT_INTERRUPTED,
    SWITCHES,
    evaluate,
    read_flags,
    settings_from,
)
from proctor.errors import UsageError

_USAGE = """\
proctor audit RUN [--episodes=10]
proctor audit --policy.type=NAME --env.type=NAME [the flags of eval] [--episodes=10]

Runs a sample of a run's finished episodes again, one at a time, each on a fresh simulator in this
process, and reports every difference. The second form evaluates first. Exit code 1: they differ.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config import TRUST
    from proctor.flags import split_argv

    positional, flags = split_argv(words, SWITCHES)
    if "help" in flags:
        print(_USAGE, end="")
        return 0
    n_episodes = _positive("episodes", flags.pop("episodes", "10"))
    trust = {name: value for name, value in flags.items() if name in TRUST}
    if len(positional) == 1 and flags == trust:
        return _audit_folder(Path(positional[0]), n_episodes, trust)
    if positional:
        raise UsageError("audit takes one run folder, or the flags of an evaluation")
    prepared, code = evaluate(settings_from(read_flags([f"--{k}={v}" for k, v in flags.items()])))
    if code == EXIT_INTERRUPTED:
        return code
    return _audit_folder(prepared.folder.path, n_episodes, trust)


def _audit_folder(path: Path, n_episodes: int, trust: dict[str, str]) -> int:
    from rich.console import Console

    from proctor.audit import audit
    from proctor.config import config_from, without_trust
    from proctor.evaluation import prepare
    from proctor.recorders.again import Comparison
    from proctor.recorders.journal import read_journal
    from proctor.run import RunFolder

    record = RunFolder(path).read()
    if record is None:
        raise UsageError(f"{path} is not a run folder (it has no run.json)")
    rows = read_journal(path).rows
    given = without_trust(record.given)
    prepared = prepare(config_from({**given, **trust, "output_dir": str(path)}))
    console = Console()

    def show(comparison: Comparison) -> None:
        row, differences = comparison.recorded, comparison.differences
        verdict = "differs: " + ", ".join(differences) if differences else "same"
        console.print(f"{row.task} episode {row.episode_index}: {verdict}", highlight=False)

    comparisons = audit(prepared, rows, n_episodes, show)
    if not comparisons:
        raise UsageError(f"{path} holds no finished episode to audit")
    different = sum(bool(comparison.differences) for comparison in comparisons)
    console.print(
        f"{len(comparisons)} episodes run again, {different} different",
        style="bold",
        highlight=False,
    )
    return 1 if different else 0


def _positive(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--{name} must be a whole number of at least 1, got {text!r}")
    return int(text)
