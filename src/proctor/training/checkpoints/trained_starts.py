"""The starts that train a policy: of its demonstrations, and of the checkpoint it begins from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from proctor.trained_starts import TrainedStarts, read_trained_starts


def episode_starts(
    dataset: str, starts: Sequence[str | None] | None, episodes: Sequence[int]
) -> TrainedStarts:
    """Return the starts of a dataset's ``episodes``; ``starts`` are those of all its episodes."""
    texts = [None if starts is None else starts[episode] for episode in episodes]
    return TrainedStarts.of_episodes(dataset, texts)


def earlier_starts(checkpoint: Path | None) -> TrainedStarts:
    """Return the starts that trained the checkpoint a training begins from; None: new weights."""
    if checkpoint is None:
        return TrainedStarts()
    found = read_trained_starts(checkpoint)
    if found is not None:
        return found
    return TrainedStarts(
        unknown=(
            "it was trained from a checkpoint that does not say which starts trained it "
            "(of LeRobot, or an older Proctor)",
        )
    )
