"""Why a run ended before all planned episodes: a stop rule, a signal or an error."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proctor.errors import ProctorError, strip_control_codes
from proctor.runs.folder import results_section
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import NOT_MONITORED, monitored_rates

_SIGNALS = {
    signal.SIGINT: "it was interrupted by Ctrl-C (SIGINT)",
    signal.SIGTERM: "it was told to stop (SIGTERM), as by kill or a cluster's time limit",
    signal.SIGHUP: "its terminal went away (SIGHUP)",
}


def stop_reason(folder: Path, resolved: Mapping[str, Any]) -> str | None:
    """Return why a stop rule ended a run; None if no rule did.

    The reason of an earlier session is ignored if the run now has no stop rule.
    """
    if monitored_rates(resolved) == NOT_MONITORED:
        return None
    section = results_section(folder)
    stopped = None if section.get("complete", True) else section.get("stopped")
    return None if stopped is None else str(stopped)


def end_reason(error: BaseException | None) -> str | None:
    """Return why ``error`` ends a session early; None without an error."""
    if error is None:
        return None
    if isinstance(error, KeyboardInterrupt):
        cause = next((arg for arg in error.args if isinstance(arg, signal.Signals)), signal.SIGINT)
        return _SIGNALS.get(cause, f"it was told to stop ({cause.name})")
    text = str(error) if isinstance(error, ProctorError) else f"{type(error).__name__}: {error}"
    return strip_control_codes(text)


def interruption_reason(folder: Path, sessions: int) -> str | None:
    """Return why the last session ended early, if that session wrote a reason."""
    section = results_section(folder)
    reason = section.get("ended") if section.get("session") == sessions else None
    return None if reason is None else str(reason)


def round_warnings(rows: Sequence[EpisodeRecord], resolved: Mapping[str, Any]) -> list[str]:
    """Warn about incomplete rounds in a run with a stop rule, which needs complete rounds."""
    if monitored_rates(resolved) == NOT_MONITORED or not rows:
        return []
    tasks = {(row.suite, row.task_id) for row in rows}
    ended: dict[int, int] = {}
    for row in rows:
        ended[row.episode_index] = ended.get(row.episode_index, 0) + 1
    missing = sum(len(tasks) - n for n in ended.values())
    if not missing:
        return []
    return [
        f"{missing} episode{'s' * (missing != 1)} missing in incomplete rounds: episodes that end "
        "first are mostly successes, so the rate cannot be trusted; --resume completes them"
    ]
