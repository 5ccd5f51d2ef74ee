"""An edited dataset, made from its recipe: videos, tables, episodes, statistics, info.json last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from proctor.datasets.edit.card import merged_card
from proctor.datasets.edit.destination import Destination, building, dataset_locked
from proctor.datasets.edit.edit_plan import (
    EditPlan,
    FileNumber,
    SourceDataset,
    file_segments,
    open_source,
)
from proctor.datasets.edit.edited_statistics import EditedStatistics
from proctor.datasets.edit.files import copy_other_files, link_or_copy
from proctor.datasets.edit.frames import FrameNumbering, number_frames, write_frames
from proctor.datasets.edit.operations import convert
from proctor.datasets.edit.videos import WrittenVideos, write_videos
from proctor.datasets.format.episodes import EpisodeMetadata, write_episodes
from proctor.datasets.format.info import VERSION, Info
from proctor.datasets.format.info_file import write_info
from proctor.datasets.format.tables import write_stats
from proctor.datasets.format.tasks import SUBTASK_INDEX, SUBTASKS_FILE, write_tasks
from proctor.datasets.hub import CARD_FILE
from proctor.datasets.writing.file_allocation import file_number
from proctor.datasets.writing.staging import StagingArea
from proctor.errors import DatasetError, UsageError

_ROWS_OF_A_FILE = 1000
"""Episodes in one table of them: with their statistics, some ten megabytes."""


@dataclass(frozen=True)
class BuiltDataset:
    """A dataset that was made."""

    root: Path
    info: Info
    again: Mapping[str, Sequence[int]]
    """Camera -> the episodes whose packets could not be copied: they were encoded again."""


def edit(root: Path, place: Destination, make: Callable[[SourceDataset], EditPlan]) -> BuiltDataset:
    """Make a dataset of the one in ``root`` and put it at ``place``, which may be the same.

    Raises:
        UsageError: as ``build`` and ``make`` do; or another process works in the dataset.
    """
    with dataset_locked(place):
        source = open_source(root)
        if place.in_place and source.info.is_v2 and make is not convert:
            raise UsageError(
                f"{root} is {source.info.version}, and edits make {VERSION}: choose another folder "
                "(--output=DIR), or convert it first (proctor data convert)"
            )
        linked = place.in_place and place.backup is None
        return build(replace(make(source), linked=linked), place)


def build(edit_plan: EditPlan, place: Destination) -> BuiltDataset:
    """Make the dataset of ``edit_plan`` and put it at ``place``.

    Raises:
        DatasetError: a source is damaged.
        UsageError: the place is taken, in use or full; what was there is as it was.
    """
    for root in {kept.source.root.resolve() for kept in edit_plan.kept}:
        if root in place.root.resolve().parents:
            raise UsageError(f"{place.root} is inside {root}; choose a folder beside it")
    for kept in edit_plan.kept:
        if kept.row.length < 1:
            raise DatasetError(
                f"{kept.source.root}: episode {kept.row.index} has no frames; take it out first "
                f"(proctor data delete {kept.source.root} --episodes=[{kept.row.index}])"
            )
    with building(place) as into:
        info, filmed = _write(edit_plan, into)
        if len({kept.source.root for kept in edit_plan.kept}) > 1:
            (into / CARD_FILE).write_text(merged_card(edit_plan, place.root.name))
    again = {key: found.again for key, found in filmed.items() if found.again}
    return BuiltDataset(place.root, info, again)


def _write(edit_plan: EditPlan, into: Path) -> tuple[Info, dict[str, WrittenVideos]]:
    parts = file_segments(edit_plan, lambda row: row.data)
    numbering = number_frames(edit_plan, parts)
    filmed = {key: write_videos(edit_plan, key, into) for key in edit_plan.info.video_keys}
    seen = {key: found.levels for key, found in filmed.items() if found.levels}
    counting = EditedStatistics(edit_plan, seen)
    files = write_frames(edit_plan, parts, numbering, into, counting.hear)
    rows = _rows(edit_plan, numbering, files, filmed)
    for position, start in enumerate(range(0, len(rows), _ROWS_OF_A_FILE)):
        chosen = slice(start, start + _ROWS_OF_A_FILE)
        file = file_number(edit_plan.info, position)
        write_episodes(into, rows[chosen], counting.episodes[chosen], *file)
    _keep_levels(counting, into)
    write_tasks(into, numbering.tasks)
    write_stats(into, counting.total())
    sources = list(dict.fromkeys(kept.source.root for kept in edit_plan.kept))
    if len(sources) == 1:
        copy_other_files(sources[0], into, linked=edit_plan.linked)
    elif SUBTASK_INDEX in edit_plan.info.features and (sources[0] / SUBTASKS_FILE).is_file():
        link_or_copy(sources[0] / SUBTASKS_FILE, into / SUBTASKS_FILE, linked=edit_plan.linked)
    info = replace(
        edit_plan.info,
        total_episodes=len(rows),
        total_frames=sum(row.length for row in rows),
        total_tasks=len(numbering.tasks),
        splits={"train": f"0:{len(rows)}"},
    )
    write_info(into, info)
    return info, filmed


def _keep_levels(counting: EditedStatistics, into: Path) -> None:
    """Keep what is known of pictures, so that whoever goes on has quantiles of all of them."""
    workshop = StagingArea(into)
    for episode, levels in enumerate(counting.levels):
        for key, counts in levels.items():
            if counts is not None:
                workshop.write_levels(key, episode, counts)


def _rows(
    edit_plan: EditPlan,
    numbering: FrameNumbering,
    files: Sequence[FileNumber],
    filmed: Mapping[str, WrittenVideos],
) -> list[EpisodeMetadata]:
    rows = []
    for place, kept in enumerate(edit_plan.kept):
        _, first = np.unique(numbering.new_tasks[place], return_index=True)
        tasks = [int(numbering.new_tasks[place][i]) for i in sorted(first)]
        start = numbering.starts[place]
        rows.append(
            EpisodeMetadata(
                index=place,
                tasks=tuple(numbering.tasks[task] for task in tasks),
                length=kept.row.length,
                data=files[place],
                from_index=start,
                to_index=start + kept.row.length,
                videos={key: found.spans[place] for key, found in filmed.items()},
            )
        )
    return rows
