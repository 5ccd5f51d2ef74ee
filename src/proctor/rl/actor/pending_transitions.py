"""A folder of an actor's transitions that the learner has not acknowledged.

One file holds one batch; its name has the batch's first number and its count. A file is complete
when it has its name, and is removed when the learner has acknowledged the batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from proctor.errors import RunFolderError, WriteFailed
from proctor.protocols.actor_learner import MAX_NAME, MAX_PAYLOAD_BYTES
from proctor.system.files import atomic_write, read_regular_file
from proctor.system.links import refuse_links
from proctor.system.locks import acquire_lock

_BATCH = re.compile(r"([0-9]{15})-([0-9]{1,6})\.transitions")
_NAME = "actor.txt"


class PendingFolder:
    """The folder, and the actor's name in it, which stays the same over restarts."""

    def __init__(self, folder: Path, actor: str) -> None:
        """Open the folder; ``actor`` names a new one."""
        self._folder, name = folder, folder / _NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            refuse_links(folder)
            self._lock = acquire_lock(folder)
            if not name.exists():
                atomic_write(name, actor.encode())
            self.actor = read_regular_file(name, MAX_NAME).decode("ascii", "replace")
        except OSError as error:
            raise WriteFailed(folder, error) from None

    def add(self, first: int, count: int, payload: bytes) -> None:
        """Keep a batch."""
        path = self._path(first, count)
        try:
            atomic_write(path, payload)
        except OSError as error:
            raise WriteFailed(path, error) from None

    def remove(self, first: int) -> None:
        """Remove the batch that begins with the number ``first``."""
        for path in self._folder.glob(f"{first:015d}-*.transitions"):
            path.unlink(missing_ok=True)

    def read(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield the kept batches in order: first number, count and payload."""
        for path in sorted(self._folder.iterdir()):
            found = _BATCH.fullmatch(path.name)
            if found is None:
                continue
            try:
                payload = read_regular_file(path, MAX_PAYLOAD_BYTES)
            except OSError as error:
                raise RunFolderError(
                    f"cannot read {path}: {error.strerror}", code="rl.pending-unreadable"
                ) from None
            yield int(found[1]), int(found[2]), payload

    def close(self) -> None:
        """Let another process use the folder."""
        self._lock.release()

    def _path(self, first: int, count: int) -> Path:
        return self._folder / f"{first:015d}-{count}.transitions"
