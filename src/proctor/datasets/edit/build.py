"""Build an edited dataset from its plan.

The files are written in this order: videos, data, episodes table, statistics, info.json.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from proctor.datasets.edit.destination import Destination, building, dataset_locked
from proctor.datasets.edit.edit_plan import EditPlan, SourceDataset, data_segments, open_source
from proctor.datasets.edit.edited_statistics import EditedStatistics
from proctor.datasets.edit.episode_tables import relocate_rows, write_new_rows
from proctor.datasets.edit.files import copy_other_files, link_or_copy, link_unpacked_files
from proctor.datasets.edit.frames import FrameNumbering, number_frames, write_frames
from proctor.datasets.edit.operations import convert
from proctor.datasets.edit.recording_log import carry_recording_log
from proctor.datasets.edit.videos import WrittenVideos, write_videos
from proctor.datasets.format.episodes import EpisodeMetadata
from proctor.datasets.format.info import VERSION, Info
from proctor.datasets.format.info_file import write_info
from proctor.datasets.format.tables import write_stats
from proctor.datasets.format.tasks import SUBTASK_INDEX, SUBTASKS_FILE, write_tasks
from proctor.datasets.hub import CARD_FILE, card_head
from proctor.datasets.writing.file_allocation import FileNumber
from proctor.datasets.writing.staging import StagingArea
from proctor.errors import DatasetError, UsageError
from proctor.system.files import read_regular_file
from proctor.version import __version__

_MOST_BYTES = 2**16
"""Largest card that is quoted, in bytes."""
_EDGE = "---\n"
"""Delimiter of the YAML block at the top of a card."""


def merged_card(edit_plan: EditPlan, name: str) -> str:
    """Return the card of the dataset ``name`` that ``edit_plan`` merges."""
    return f"""\
{card_head(name)}
Put together by Proctor {__version__} of these datasets, in this order, as LeRobotDataset {VERSION}:

{chr(10).join(_parts(edit_plan))}
"""


def _parts(edit_plan: EditPlan) -> Iterator[str]:
    """Yield lines for every source: its number of episodes, and its quoted card."""
    for source, kept in itertools.groupby(edit_plan.kept, lambda kept: kept.source):
        yield f"- `{source.root.name}`, {len(list(kept))} episodes"
        for line in _own_words(source.root / CARD_FILE):
            yield f"  > {line}".rstrip()


def _own_words(path: Path) -> list[str]:
    """Return the lines of a card without its YAML block; empty if there is no card."""
    try:
        said = read_regular_file(path, _MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return []
    if said.startswith(_EDGE):
        said = said.partition(f"\n{_EDGE}")[2]
    return said.strip().splitlines()


@dataclass(frozen=True)
class BuiltDataset:
    """An edited dataset at its destination."""

    root: Path
    info: Info
    again: Mapping[str, Sequence[int]]
    """Camera -> episodes whose packets could not be copied, so that they were encoded again."""
    replaced: bool = False
    """Whether it took the place of another dataset."""
    backup: Path | None = None
    """Folder of the replaced dataset; None if there was none, or if it was removed."""


def edit(
    root: Path, destination: Destination, make: Callable[[SourceDataset], EditPlan]
) -> BuiltDataset:
    """Edit the dataset in ``root`` by the plan of ``make``, into ``destination``."""
    with dataset_locked(destination) as where:
        source = open_source(root)
        if destination.in_place and source.info.is_v2 and make is not convert:
            raise UsageError(
                f"{root} is {source.info.version}, and edits make {VERSION}: choose another folder "
                "(--output=DIR), or convert it first (proctor data convert)",
                code="dataset.old-version",
            )
        linked = where.in_place and where.backup is None
        return build(replace(make(source), linked=linked), where)


def build(edit_plan: EditPlan, destination: Destination) -> BuiltDataset:
    """Build the dataset of ``edit_plan`` and put it at ``destination``."""
    refuse_inside_source(edit_plan, destination)
    with building(destination) as into:
        info, videos = write_dataset(edit_plan, into)
        if len({kept.source.root for kept in edit_plan.kept}) > 1:
            (into / CARD_FILE).write_text(merged_card(edit_plan, destination.root.name))
    again = {key: written.again for key, written in videos.items() if written.again}
    return BuiltDataset(
        destination.root, info, again, replaced=destination.in_place, backup=destination.backup
    )


def refuse_inside_source(edit_plan: EditPlan, destination: Destination) -> None:
    """Refuse a destination inside of a source."""
    for root in {kept.source.root.resolve() for kept in edit_plan.kept}:
        if root in destination.root.resolve().parents:
            raise UsageError(
                f"{destination.root} is inside {root}; choose a folder beside it",
                code="dataset.inside-source",
            )


def write_dataset(edit_plan: EditPlan, into: Path) -> tuple[Info, dict[str, WrittenVideos]]:
    """Write the dataset of ``edit_plan`` into the empty folder ``into``, info.json last.

    Raises:
        DatasetError: a source is damaged.
        OSError: a file cannot be written.
    """
    for kept in edit_plan.kept:
        if kept.row.length < 1:
            raise DatasetError(
                f"{kept.source.root}: episode {kept.row.index} has no frames; delete it first "
                f"(proctor data delete {kept.source.root} --episodes=[{kept.row.index}])",
                code="dataset.empty-episode",
            )
    segments = data_segments(edit_plan)
    numbering = number_frames(edit_plan, segments)
    videos = {key: write_videos(edit_plan, key, into) for key in edit_plan.info.video_keys}
    if edit_plan.repack:
        root, limits = edit_plan.kept[0].source.root, edit_plan.file_limits
        files = write_frames(edit_plan, segments, numbering, into, None)
        rows = _episode_rows(edit_plan, numbering, files, videos)
        relocate_rows(root, into, edit_plan.info, rows, limits.data)
        link_unpacked_files(root, into)
        info = edit_plan.info
    else:
        encoded = {key: written.levels for key, written in videos.items() if written.levels}
        statistics = EditedStatistics(edit_plan, encoded)
        files = write_frames(edit_plan, segments, numbering, into, statistics.add)
        rows = _episode_rows(edit_plan, numbering, files, videos)
        write_new_rows(into, edit_plan.info, rows, statistics.episodes)
        _write_levels(statistics, into)
        write_tasks(into, numbering.tasks)
        write_stats(into, statistics.total())
        _copy_unchanged_files(edit_plan, into)
        carry_recording_log(edit_plan, into)
        info = replace(
            edit_plan.info,
            total_episodes=len(rows),
            total_frames=sum(row.length for row in rows),
            total_tasks=len(numbering.tasks),
            splits={"train": f"0:{len(rows)}"},
        )
    write_info(into, info)
    return info, videos


def _write_levels(statistics: EditedStatistics, into: Path) -> None:
    """Store the pixel counts, so that a resumed recording can compute exact quantiles."""
    staging = StagingArea(into)
    for episode, levels in enumerate(statistics.levels):
        for key, counts in levels.items():
            if counts is not None:
                staging.write_levels(key, episode, counts)


def _copy_unchanged_files(edit_plan: EditPlan, into: Path) -> None:
    sources = list(dict.fromkeys(kept.source.root for kept in edit_plan.kept))
    if len(sources) == 1:
        copy_other_files(sources[0], into, linked=edit_plan.linked)
    elif SUBTASK_INDEX in edit_plan.info.features and (sources[0] / SUBTASKS_FILE).is_file():
        link_or_copy(sources[0] / SUBTASKS_FILE, into / SUBTASKS_FILE, linked=edit_plan.linked)


def _episode_rows(
    edit_plan: EditPlan,
    numbering: FrameNumbering,
    files: Sequence[FileNumber],
    videos: Mapping[str, WrittenVideos],
) -> list[EpisodeMetadata]:
    rows = []
    for position, kept in enumerate(edit_plan.kept):
        _, first = np.unique(numbering.new_tasks[position], return_index=True)
        tasks = [int(numbering.new_tasks[position][i]) for i in sorted(first)]
        start = numbering.starts[position]
        rows.append(
            EpisodeMetadata(
                index=position,
                tasks=tuple(numbering.tasks[task] for task in tasks),
                length=kept.row.length,
                data=files[position],
                from_index=start,
                to_index=start + kept.row.length,
                videos={key: written.spans[position] for key, written in videos.items()},
                start=kept.row.start,
            )
        )
    return rows
