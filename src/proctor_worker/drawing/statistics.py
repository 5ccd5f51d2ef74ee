"""Where a drawing process spends its time."""

import time
from typing import Any, Dict

WAITING, RECEIVING, PREPARING, BEGINNING, DRAWING, REPLYING = PARTS = (
    "waiting",
    "receiving",
    "preparing",
    "beginning",
    "drawing",
    "replying",
)
"""Idle; taking messages; uploading assets and layouts; packing and launching a batch; idle while a
batch is drawn; sending pictures."""


class ServerStatistics:
    """Counts pictures and batches, and the seconds of each part of the work."""

    def __init__(self) -> None:
        self.images = self.batches = 0
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._part, self._since = WAITING, time.perf_counter()

    def enter(self, part: str) -> str:
        """Begin a part of the work; return the part that ends."""
        now, ended = time.perf_counter(), self._part
        self._seconds[ended] += now - self._since
        self._part, self._since = part, now
        return ended

    def count(self, images: int) -> None:
        """Count a batch."""
        self.images += images
        self.batches += 1

    def as_dict(self) -> Dict[str, Any]:
        """Return the numbers so far."""
        self.enter(self._part)
        seconds = {part: round(self._seconds[part], 3) for part in PARTS}
        return {"images": self.images, "batches": self.batches, "seconds": seconds}
