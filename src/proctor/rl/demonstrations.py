"""The demonstrations of an online training: the dataset that fills the offline buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proctor.config.online_training import DemonstrationSettings
from proctor.datasets import reader
from proctor.datasets.reading.dataset import Dataset
from proctor.errors import UsageError
from proctor.features import ACTION
from proctor.rl.replay.buffer import ReplayBuffer
from proctor.rl.replay.datasets import fill_from_dataset, rewards_are_assumed
from proctor.trained_starts import TrainedStarts
from proctor.training.checkpoints.trained_starts import episode_starts


@dataclass(frozen=True)
class Demonstrations:
    """An open dataset of demonstrations."""

    name: str
    dataset: Dataset

    @property
    def statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """Statistics of its features."""
        return self.dataset.stats

    @property
    def notes(self) -> list[str]:
        """Lines that the user should see once."""
        if not rewards_are_assumed(self.dataset):
            return []
        return [f"{self.name} has no next.reward: the last step of each episode gets reward 1"]

    @property
    def text(self) -> str:
        """Name and size, for the headline."""
        return f"{len(self.dataset):,} demonstrated steps of {self.name}"

    @property
    def trained_starts(self) -> TrainedStarts:
        """The starts of the demonstrations that are read."""
        starts, chosen = self.dataset.episodes.starts, self.dataset.chosen.tolist()
        return episode_starts(self.name, starts, chosen)

    def fill(self, buffer: ReplayBuffer) -> None:
        """Add the demonstrations to an empty buffer."""
        fill_from_dataset(buffer, self.dataset, lambda done, total: None)


def open_demonstrations(settings: DemonstrationSettings, action_size: int) -> Demonstrations:
    """Open the dataset of demonstrations for an environment with ``action_size`` actions."""
    dataset = reader.open(
        settings.path_or_id,
        root=settings.root,
        episodes=settings.episodes,
        revision=settings.revision,
    )
    found = dataset.info.features.get(ACTION, {}).get("shape", ())
    if tuple(found) != (action_size,):
        raise UsageError(
            f"{settings.name} has actions of shape {list(found)}, and the environment takes "
            f"{action_size} numbers",
            code="rl.demonstrations-mismatch",
        )
    return Demonstrations(settings.name, dataset)
