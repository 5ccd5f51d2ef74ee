"""Read W&B's files of an offline run."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768


def records(path: Path) -> Iterator[Any]:
    """Read a .wandb file: a LevelDB log, whose records may continue in the next block."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts = path.read_bytes(), 7, b""
    while place < len(content):
        if _BLOCK - place % _BLOCK < 7:  # no room for a header: the block is filled up
            place += _BLOCK - place % _BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", content[place : place + 7])
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


class Logged:
    """W&B's data of one session on disk."""

    def __init__(self, session: Path) -> None:
        (log,) = session.glob("*.wandb")
        self.id = log.stem.removeprefix("run-")
        self.files = session / "files"
        found = list(records(log))
        assert found[-1].HasField("exit"), "the session was not finished"
        self.exit_code = found[-1].exit.exit_code
        self.history = [_values(r.history.item) for r in found if r.HasField("history")]
        self.tags = [tag for r in found if r.HasField("run") for tag in r.run.tags]
        self.project = next(r.run.project for r in found if r.HasField("run"))
        self.artifacts = [r.artifact.name for r in found if r.HasField("artifact")]
        self.summary: dict[str, Any] = {}
        for record in found:
            if record.HasField("summary"):
                self.summary |= _values(record.summary.update)


def _values(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def logged(run_folder: Path) -> list[Logged]:
    """Return the sessions of a run, oldest first.

    W&B's service writes its log when it closes it, after ``finish`` has returned: the log can be
    read only when the service has ended.
    """
    import wandb

    wandb.teardown()
    folders = (run_folder / "wandb").glob("offline-run-*")
    sessions = [Logged(path) for path in folders]
    return sorted(sessions, key=lambda session: session.history[0]["_timestamp"])
