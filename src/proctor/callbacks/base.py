"""What a recorder is: it hears of episodes as they end and of how the run goes."""

from __future__ import annotations

from collections.abc import Iterable

from proctor.runs.records import RunProgress
from proctor.types import EpisodeResult


class Callback:
    """An output of a run. Hears nothing by itself: one that is made from it says what it hears."""

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Take one finished episode. It is called once for each, as it ends."""

    def on_progress(self, progress: RunProgress) -> None:
        """Hear how the run goes, a few times a second."""

    def close(self) -> None:
        """The run is over, finished or not."""


def close_all(callbacks: Iterable[Callback]) -> None:
    """Close every recorder, whatever comes of the others, then raise the first error of any."""
    first: BaseException | None = None
    for callback in callbacks:
        try:
            callback.close()
        except BaseException as error:  # noqa: BLE001  raised below; Ctrl-C too leaves none open
            first = first or error
    if first is not None:
        raise first
