"""Time, steps and policy calls of a run: one line per session in ``sessions.jsonl``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from proctor.runs.jsonl import read_jsonl
from proctor.runs.records import RunProgress

SESSIONS_FILE = "sessions.jsonl"


def read_session_totals(folder: Path) -> RunProgress:
    """Add up the final progress of all sessions of a run.

    A session that was killed has no line.
    """
    lines = read_jsonl(folder / SESSIONS_FILE, msgspec.json.Decoder(RunProgress).decode)
    sessions = [line.value for line in lines if line.value is not None]
    return RunProgress(
        elapsed_s=sum(session.elapsed_s for session in sessions),
        steps=sum(session.steps for session in sessions),
        infer_s=sum(session.infer_s for session in sessions),
        batches=sum(session.batches for session in sessions),
        batched_requests=sum(session.batched_requests for session in sessions),
        calls=dict(sum((Counter(session.calls) for session in sessions), Counter())),
    )
