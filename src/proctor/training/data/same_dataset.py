"""The datasets of a training: that of its start, and others that it was resumed with.

A resumed training may use another dataset if a flag names another folder or Hub id, and if it has
the same features. Its samples come in a new order from that step on. A dataset that was changed in
its place is refused, since its editor may not have meant to change a training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proctor.config.training import TrainConfig
from proctor.errors import UsageError
from proctor.number_text import number_ranges
from proctor.runs.training import RECORD_FILE, TrainingDataset
from proctor.system.files import display_path
from proctor.training.checkpoints.saving import PRETRAINED, STATE
from proctor.training.checkpoints.state import read_step
from proctor.training.checkpoints.trained_episodes import TrainedEpisodes, checkpoint_record

if TYPE_CHECKING:
    from proctor.datasets.reading.identity import DatasetIdentity
    from proctor.training.data.dataset_selection import DatasetSelection

_MOST_TEXT = 60
_UNKNOWN = "this training has no record of its dataset, so changes of the dataset are not detected"


def training_datasets(
    selection: DatasetSelection, resumed: Path | None
) -> tuple[tuple[TrainingDataset, ...], list[str]]:
    """Return the datasets of a training for ``train.json``, and notes for the user.

    The last one is that of ``selection``. Its folder is recorded with the other paths.

    Args:
        selection: the dataset of this session.
        resumed: the checkpoint to resume from.
    """
    from proctor.datasets.reading.identity import identity_of

    settings = selection.config.dataset
    now = TrainingDataset(
        first_step=0,
        identity=asdict(identity_of(selection.source)),
        repo_id=settings.repo_id,
        revision=settings.revision,
        episodes=number_ranges(selection.trained_on),
    )
    record = None if resumed is None else checkpoint_record(resumed)
    known = [] if record is None else record.known_datasets
    if resumed is None or not known:
        return (now,), [] if resumed is None else [_UNKNOWN]
    step = read_step(resumed / STATE)
    # Of datasets that were first used at this step or later, the checkpoint has seen nothing.
    used = [dataset for dataset in known if dataset.first_step < step] or known[:1]
    last = used[-1]
    differences = _differences(last, resumed, selection)
    if not differences and last.episodes in (None, now.episodes):
        same = replace(last, repo_id=now.repo_id, revision=now.revision, root=None)
        return (*used[:-1], same), []
    what = (f"{settings.root or settings.repo_id} ({now.size})", str(last))
    if differences:
        _check_change(last, differences, resumed, selection)
    else:
        now = replace(now, identity=last.identity)
        what = (f"episodes {_short(now.episodes)}", _short(last.episodes))
    note = (
        f"from step {step:,} on, this training uses {what[0]} instead of {what[1]}; the order of "
        "samples begins anew, and the normalisation statistics stay those of the checkpoint"
    )
    return (*used, replace(now, first_step=step)), [note]


def _short(episodes: str | None) -> str:
    text = episodes or "none"
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def validated_episodes(
    selection: DatasetSelection, datasets: Sequence[TrainingDataset], base: TrainedEpisodes
) -> tuple[DatasetSelection, list[str]]:
    """Leave out validation episodes that trained the policy before; return notes for the user.

    Args:
        selection: the dataset of this session.
        datasets: the training's datasets, the last one that of this session.
        base: what trained the policy that the training began with.
    """
    earlier = [*base.base, *datasets[:-1]]
    begins = [one for one in earlier if one.episodes and _is_beginning(one, selection)]
    trained = set().union(*(one.trained_on for one in begins))
    unknown = {
        one.name: one
        for one in (*earlier, datasets[-1])
        if one.episodes is None or (one not in begins and one.identity != datasets[-1].identity)
    }
    notes = [
        f"whether {one} has validation episodes of this session is unknown, so the validation "
        "loss may be on episodes that were trained on"
        for one in unknown.values()
    ]
    if not base.base_is_known:
        notes.append(
            "the policy to begin with has no record of its episodes, so the validation loss may be "
            "on episodes that it was trained on"
        )
    seen = sorted(trained.intersection(selection.held_out))
    if not seen:
        return selection, notes
    when = f"before step {datasets[-1].first_step:,}"
    if len(seen) == len(selection.held_out):
        raise UsageError(
            f"all validation episodes ({_short(number_ranges(seen))}) were trained on {when}: "
            "choose others, or add --eval_steps=0",
            code="training.validation-changed",
        )
    left = tuple(episode for episode in selection.held_out if episode not in trained)
    notes.append(
        f"validation leaves out episodes {_short(number_ranges(seen))}, which were trained on "
        f"{when}; {len(left)} are left"
    )
    return replace(selection, held_out=left), notes


def _is_beginning(dataset: TrainingDataset, selection: DatasetSelection) -> bool:
    """Tell whether the present dataset begins with the episodes of ``dataset``, in its order."""
    from proctor.datasets.reading.identity import DatasetIdentity, identity_of

    try:
        known = msgspec.convert(dataset.identity, DatasetIdentity)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"the identity of {dataset.name} in the training's record is invalid: {error}",
            code="run.unreadable",
        ) from None
    return not known.differences(identity_of(selection.source, known.episodes))


def _identity(dataset: TrainingDataset, resumed: Path) -> DatasetIdentity:
    from proctor.datasets.reading.identity import DatasetIdentity

    try:
        return msgspec.convert(dataset.identity, DatasetIdentity)
    except msgspec.ValidationError as error:
        where = resumed.parent.parent / RECORD_FILE
        raise UsageError(
            f"{where}: the identity of a dataset is invalid: {error}", code="run.unreadable"
        ) from None


def _differences(last: TrainingDataset, resumed: Path, selection: DatasetSelection) -> list[str]:
    """Return the differences to the last dataset. Appended episodes count if they are used."""
    from proctor.datasets.reading.identity import identity_of

    known = _identity(last, resumed)
    differences = known.differences(identity_of(selection.source, known.episodes))
    newest = max((*selection.trained_on, *selection.held_out), default=0)
    if not differences and newest >= known.episodes:
        more = len(selection.source.episodes) - known.episodes
        differences = [f"{more:,} episodes were added to its {known.episodes:,}"]
    return differences


def _check_change(
    last: TrainingDataset, differences: list[str], resumed: Path, selection: DatasetSelection
) -> None:
    """Refuse a dataset that was changed in its place, or that has other features."""
    from proctor.datasets.reading.identity import identity_of

    name, run = selection.source.name, resumed.parent.parent
    other = (
        "train on it in another --output_dir with "
        f"--policy.path={display_path(resumed / PRETRAINED)}"
    )
    if not _is_elsewhere(last, selection.config, run):
        raise UsageError(
            f"{name} is not the dataset that this training was started with: "
            f"{'; '.join(differences)}; restore it, go on with another one "
            f"(--dataset.root=DIR, such as a copy of this one), or {other}",
            code="dataset.changed",
        )
    unfit = _identity(last, resumed).feature_differences(identity_of(selection.source))
    if unfit:
        raise UsageError(
            f"{name} does not fit this training: {unfit[0]}; give another --dataset.root, or "
            f"{other}",
            code="dataset.features-differ",
        )
    if selection.config.eval_steps:
        raise UsageError(
            f"{name} has other validation episodes than {last}, and some may have been trained "
            "on; add --eval_steps=0",
            code="training.validation-changed",
        )


def _is_elsewhere(last: TrainingDataset, config: TrainConfig, run: Path) -> bool:
    """Return whether the settings name another folder or Hub id than that of ``last``."""
    settings = config.dataset
    if settings.root is None:
        hub = (settings.repo_id, settings.revision)
        return last.root is not None or hub != (last.repo_id, last.revision)
    return last.root is None or last.root.find(run) != settings.root.expanduser().resolve()
