"""The episodes that trained a policy: kept in every checkpoint, across sessions and fine-tunings.

``pretrained_model/policy_trained_episodes.json`` lets a later training leave them out of its
validation, wherever the checkpoint was copied to. It holds no paths. The record of the session that
wrote a checkpoint, with all settings, is a copy of train.json in its ``training_state``.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from proctor.errors import UsageError
from proctor.runs.training import RECORD_FILE, TrainingDataset, TrainingRecord, read_training
from proctor.system.files import read_regular_file
from proctor.training.checkpoints.saving import PRETRAINED, STATE

TRAINED_EPISODES = "policy_trained_episodes.json"


class TrainedEpisodes(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file; the same dataset may occur several times."""

    base: tuple[TrainingDataset, ...] = ()
    """What trained the policy that the training began with."""
    datasets: tuple[TrainingDataset, ...] = ()
    """What this training used, by first step."""
    base_is_known: bool = True
    """Whether ``base`` is whole; False for a base that another program trained."""

    @property
    def every(self) -> tuple[TrainingDataset, ...]:
        """All datasets, in order."""
        return (*self.base, *self.datasets)

    def with_datasets(self, used: Sequence[TrainingDataset]) -> TrainedEpisodes:
        """Return it for a session that uses ``used``; folders are left out."""
        portable = tuple(replace(one, root=None) for one in used)
        return msgspec.structs.replace(self, datasets=portable)

    def write(self, folder: Path) -> None:
        """Write the file beside a policy's weights."""
        (folder / TRAINED_EPISODES).write_bytes(msgspec.json.encode(self))

    def as_base(self) -> TrainedEpisodes:
        """Return it for a training that begins with this policy."""
        return TrainedEpisodes(base=self.every, base_is_known=self.base_is_known)


def read_trained_episodes(policy: Path) -> TrainedEpisodes | None:
    """Return what trained the policy in a folder; None: unknown."""
    file = policy / TRAINED_EPISODES
    try:
        return msgspec.json.decode(read_regular_file(file), type=TrainedEpisodes)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{file} is damaged: {error}; remove it to train without knowing which episodes "
            "trained this policy",
            code="checkpoint.unreadable",
        ) from None


def base_episodes(resumed: Path | None, base: Path | None) -> TrainedEpisodes:
    """Return what trained a training's policy before its first step.

    Args:
        resumed: the checkpoint to resume from.
        base: the folder of the policy that a new training begins with; None: new weights.
    """
    if resumed is not None:
        found = read_trained_episodes(resumed / PRETRAINED)
        return TrainedEpisodes(base_is_known=False) if found is None else found
    if base is None:
        return TrainedEpisodes()
    found = read_trained_episodes(base)
    return TrainedEpisodes(base_is_known=False) if found is None else found.as_base()


def checkpoint_record(checkpoint: Path) -> TrainingRecord | None:
    """Return the record of the session that wrote ``checkpoint``.

    A checkpoint of an older version has none: then that of the training's last session.
    """
    return read_training(checkpoint / STATE) or read_training(checkpoint.parent.parent)


def keep_record(run: Path, checkpoint: Path) -> None:
    """Copy the record of the present session into a checkpoint that is being written."""
    if (run / RECORD_FILE).is_file():
        shutil.copyfile(run / RECORD_FILE, checkpoint / STATE / RECORD_FILE)
