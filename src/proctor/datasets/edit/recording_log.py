"""Carries the log of recording sessions over to an edited dataset, with the new episode numbers.

Resuming a recording reads the seeds of simulated scenes from it, and a replay the scene itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from proctor.datasets.edit.edit_plan import EditPlan
from proctor.datasets.writing.staging import RECORDING_LOG
from proctor.system.files import MAX_JOURNAL_BYTES, read_regular_file

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def carry_recording_log(edit_plan: EditPlan, into: Path) -> None:
    """Write the lines of the kept episodes to the dataset in ``into``, which has no log yet.

    Raises:
        OSError: a log cannot be read or written.
    """
    roots = {kept.source.root for kept in edit_plan.kept}
    logs = {root: _entries(root / RECORDING_LOG) for root in roots}
    lines = []
    for position, kept in enumerate(edit_plan.kept):
        entry = logs[kept.source.root].get(kept.row.index)
        if entry is not None:
            lines.append(msgspec.json.encode(entry | {"episode": position}) + b"\n")
    if lines:
        log = into / RECORDING_LOG
        log.parent.mkdir(exist_ok=True)
        log.write_bytes(b"".join(lines))


def _entries(log: Path) -> dict[int, dict[str, Any]]:
    """Return the last line of each episode, by number; damaged lines are left out."""
    try:
        content = read_regular_file(log, MAX_JOURNAL_BYTES)
    except FileNotFoundError:
        return {}
    found = {}
    for line in content.splitlines():
        try:
            entry = msgspec.json.decode(line, type=dict[str, Any])
        except _UNREADABLE:
            continue
        if isinstance(number := entry.get("episode"), int):
            found[number] = entry
    return found
