"""Windows of frames around a frame, by offsets in time that stay inside its episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from proctor.datasets.format.info import Info
from proctor.errors import DatasetError
from proctor.features import Array

DeltaTimestamps: TypeAlias = Mapping[str, Sequence[float]]
"""Feature -> seconds relative to a frame; negative values are before it."""
_MOST_OFFSETS = 100_000


@dataclass(frozen=True)
class FrameWindows:
    """The frames of a batch, with their position and the bounds of their episodes."""

    chosen: Array
    """Index into the chosen episodes, int64 [B]."""
    frame: Array
    """Position in the episode, int64 [B]."""
    length: Array
    first_row: Array

    @property
    def rows(self) -> Array:
        """The row of each frame in the columns."""
        return self.first_row + self.frame

    def around(self, offsets: Array) -> tuple[Array, Array]:
        """Return the rows at ``offsets`` from each frame [B, T], and a mask of padded ones.

        Offsets outside the episode are padded with its first or last frame.
        """
        wanted = self.frame[:, None] + offsets
        inside = np.minimum(np.maximum(wanted, 0), self.length[:, None] - 1)
        return self.first_row[:, None] + inside, wanted != inside


def frame_offsets(
    delta_timestamps: DeltaTimestamps | None, info: Info, tolerance_s: float
) -> dict[str, Array]:
    """Convert seconds to frame offsets, int64 [T] per feature."""
    offsets = {}
    for key, seconds in (delta_timestamps or {}).items():
        info.entry(key)
        times = np.asarray(seconds, np.float64)
        if times.ndim != 1 or not 0 < len(times) <= _MOST_OFFSETS:
            raise DatasetError(
                f"delta_timestamps of {key} must be a list of seconds",
                code="dataset.invalid-delta-timestamps",
            )
        whole = np.rint(times * info.fps)
        between = ~(np.abs(times * info.fps - whole) / info.fps <= tolerance_s)  # NaN too
        if between.any():
            raise DatasetError(
                f"delta_timestamps of {key}: {times[between][0]} s is not a multiple of "
                f"1/{info.fps} s",
                code="dataset.invalid-delta-timestamps",
            )
        offsets[key] = whole.astype(np.int64)
    return offsets
