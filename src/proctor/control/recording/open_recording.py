"""An open dataset of a session on a robot: its writer thread, its log, and its orderly end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from proctor.control.loop.frame_queue import FrameQueue
from proctor.control.recording.log import RecordingLog
from proctor.control.recording.recorded_dataset import RecordedDataset


@dataclass(frozen=True)
class ClosedRecording:
    """The dataset after a session."""

    root: Path
    n_episodes: int
    """Episodes in the dataset, with those of earlier sessions."""
    waited_s: float
    """Seconds that the control loop waited for the encoder."""
    note: str | None
    """Why the dataset's files were not compacted; None if they were."""
    is_removed: bool
    """Whether the new dataset was removed, because it has no episode."""


class OpenRecording:
    """A dataset that a session records into; ``queue`` takes the frames, ``log`` the reports."""

    def __init__(self, dataset: RecordedDataset, capacity: int | None) -> None:
        """Create or resume the dataset; at most ``capacity`` frames wait for the encoder."""
        self._dataset, self._writer = dataset, dataset.open()
        self.log = RecordingLog(dataset.root)
        self.log.open()
        self.queue = FrameQueue(self._writer, capacity)

    def finish(self, *, compact: bool) -> ClosedRecording:
        """Write the frames that wait and close the dataset.

        ``compact`` merges its files. A session that was stopped does without, to end fast.
        """
        note: str | None = None
        try:
            self.queue.flush()
        finally:
            self.queue.close()
            if compact:
                note = self._writer.close()
            else:
                self._writer.release()
            is_removed = self._dataset.remove_if_empty(self._writer)
        return ClosedRecording(
            root=self._dataset.root,
            n_episodes=self._writer.n_episodes,
            waited_s=self.queue.waited_s,
            note=note,
            is_removed=is_removed,
        )
