"""Checks that a training is resumed with the dataset that it was started with."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from proctor.errors import UsageError
from proctor.runs.training import RECORD_FILE, read_training
from proctor.system.files import display_path
from proctor.training.checkpoints import PRETRAINED

if TYPE_CHECKING:
    from proctor.training.dataset_selection import DatasetSelection

_UNKNOWN = "this training has no record of its dataset, so changes of the dataset are not detected"


def dataset_record(
    selection: DatasetSelection, resumed: Path | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the dataset's identity for ``train.json``, and notes for the user.

    ``resumed`` is the checkpoint to resume from.

    Raises:
        UsageError: the training was started with another dataset.
    """
    from proctor.datasets.reading.identity import identity_of

    record = None if resumed is None else read_training(resumed.parent.parent)
    if resumed is not None and record is not None and record.dataset is not None:
        _check_same(record.dataset, resumed, selection)
        return record.dataset, []
    notes = [] if resumed is None else [_UNKNOWN]
    return asdict(identity_of(selection.source)), notes


def _check_same(recorded: dict[str, Any], resumed: Path, selection: DatasetSelection) -> None:
    """Refuse changed contents. Appended episodes are allowed if they are not used."""
    from proctor.datasets.reading.identity import DatasetIdentity, identity_of

    try:
        known = msgspec.convert(recorded, DatasetIdentity)
    except msgspec.ValidationError as error:
        where = resumed.parent.parent / RECORD_FILE
        raise UsageError(
            f"{where}: the field dataset is invalid: {error}", code="run.unreadable"
        ) from None
    differences = known.differences(identity_of(selection.source, known.episodes))
    last = max((*selection.trained_on, *selection.held_out), default=0)
    if not differences and last >= known.episodes:
        more = len(selection.source.episodes) - known.episodes
        differences = [f"{more:,} episodes were added to its {known.episodes:,}"]
    if differences:
        raise UsageError(
            f"{selection.source.name} is not the dataset that this training was started with: "
            f"{'; '.join(differences)}; give the old one with --dataset.root, or train on this "
            f"one in another --output_dir with --policy.path={display_path(resumed / PRETRAINED)}",
            code="dataset.changed",
        )
