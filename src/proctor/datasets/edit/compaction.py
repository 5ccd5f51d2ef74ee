"""Compact a dataset: repack its small files into files of LeRobot's sizes, as an identity edit."""

from __future__ import annotations

from pathlib import Path

from proctor.datasets.edit.build import write_dataset
from proctor.datasets.edit.destination import Destination, staged
from proctor.datasets.edit.edit_plan import (
    EditPlan,
    FileSizeLimits,
    KeptEpisode,
    data_segments,
    group_segments,
    open_source,
    video_segments,
)
from proctor.datasets.format.info import episode_files
from proctor.errors import DatasetError
from proctor.system.locks import Lock


def compact(root: Path, lock: Lock, limits: FileSizeLimits | None = None) -> Lock:
    """Join the small files of the dataset in ``root``; return the lock that is held afterwards.

    The joined dataset takes the place of ``root`` in one step: a kill leaves one of the two.

    Args:
        lock: the lock of ``root``, which the caller holds.
        limits: sizes of the joined files; None takes those of info.json.

    Raises:
        OSError: there is no space, or no permission to write beside ``root``.
        DatasetError: a file is damaged. As after OSError, the dataset is unchanged.
    """
    source = open_source(root)
    kept = tuple(KeptEpisode(source, row) for row in source.rows)
    edit_plan = EditPlan(source.info, kept, linked=True, limits=limits, repack=True)
    if not _has_files_to_join(edit_plan) and len(episode_files(root)) < 2:
        return lock
    with staged(Destination(root, in_place=True)) as (folder, new_lock):
        write_dataset(edit_plan, folder)
    lock.release()
    return new_lock


def _has_files_to_join(edit_plan: EditPlan) -> bool:
    """Tell whether files are small enough to be joined."""
    limits = edit_plan.file_limits
    kinds = [(data_segments(edit_plan), limits.data)]
    kinds += [(video_segments(edit_plan, key), limits.video) for key in edit_plan.info.video_keys]
    for segments, _ in kinds:
        for segment in segments:
            if not segment.whole:
                raise DatasetError(
                    f"{segment.path}: its episodes are not consecutive",
                    code="dataset.not-consecutive",
                )
    return any(
        len(group) > 1 for segments, limit in kinds for group in group_segments(segments, limit)
    )
