"""The callback interface: outputs of a run that receive finished episodes and its progress."""

from __future__ import annotations

from collections.abc import Iterable

from proctor.runs.records import RunProgress
from proctor.types import EpisodeResult


class Callback:
    """An output of a run. Every method does nothing by default: override those that are needed."""

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Receive one finished episode; called once for each, in the order they end."""

    def on_progress(self, progress: RunProgress) -> None:
        """Receive the run's progress, a few times a second."""

    def close(self) -> None:
        """Release resources: the session is over, complete or not."""


def close_all(callbacks: Iterable[Callback]) -> None:
    """Close every callback, even if another one fails, then raise the first error."""
    first: BaseException | None = None
    for callback in callbacks:
        try:
            callback.close()
        except BaseException as error:  # noqa: BLE001  raised below; after Ctrl-C too all are closed
            first = first or error
    if first is not None:
        raise first
