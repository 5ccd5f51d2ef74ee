"""What a run cost the policy: one line per session in ``sessions.jsonl``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from proctor.runs.journal import read_lines
from proctor.runs.records import RunProgress

SESSIONS_FILE = "sessions.jsonl"


def read_effort(folder: Path) -> RunProgress:
    """Add up the last pulses of a run's sessions; one that was killed has left none."""
    lines = read_lines(folder / SESSIONS_FILE).splitlines()
    sessions = []
    for line in lines:
        try:
            sessions.append(msgspec.json.decode(line, type=RunProgress))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # cut short by a power loss; it says nothing about any episode
    return RunProgress(
        elapsed_s=sum(session.elapsed_s for session in sessions),
        steps=sum(session.steps for session in sessions),
        infer_s=sum(session.infer_s for session in sessions),
        batches=sum(session.batches for session in sessions),
        batched_requests=sum(session.batched_requests for session in sessions),
        calls=dict(sum((Counter(session.calls) for session in sessions), Counter())),
    )
