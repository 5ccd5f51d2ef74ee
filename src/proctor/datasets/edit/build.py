"""An edited dataset, made from its recipe: videos, tables, episodes, statistics, info.json last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from proctor.datasets.edit.card import merged_card
from proctor.datasets.edit.counting import Counting
from proctor.datasets.edit.files import take_over, take_over_the_rest
from proctor.datasets.edit.frames import Numbering, number, write_frames
from proctor.datasets.edit.operations import convert
from proctor.datasets.edit.place import Place, building, held
from proctor.datasets.edit.recipe import (
    FileNumber,
    Recipe,
    Source,
    open_source,
    parts_of,
)
from proctor.datasets.edit.videos import Filmed, write_videos
from proctor.datasets.format.episodes import EpisodeRow, write_episodes
from proctor.datasets.format.info import VERSION, Info
from proctor.datasets.format.info_file import write_info
from proctor.datasets.format.tables import write_stats
from proctor.datasets.format.tasks import SUBTASK_INDEX, SUBTASKS_FILE, write_tasks
from proctor.datasets.hub import CARD_FILE
from proctor.datasets.writing.places import numbered
from proctor.datasets.writing.workshop import Workshop
from proctor.errors import DatasetError, UsageError

_ROWS_OF_A_FILE = 1000
"""Episodes in one table of them: with their statistics, some ten megabytes."""


@dataclass(frozen=True)
class Built:
    """A dataset that was made."""

    root: Path
    info: Info
    again: Mapping[str, Sequence[int]]
    """Camera -> the episodes whose packets could not be copied: they were encoded again."""


def edit(root: Path, place: Place, make: Callable[[Source], Recipe]) -> Built:
    """Make a dataset of the one in ``root`` and put it at ``place``, which may be the same.

    Raises:
        UsageError: as ``build`` and ``make`` do; or another process works in the dataset.
    """
    with held(place):
        source = open_source(root)
        if place.in_place and source.info.is_v2 and make is not convert:
            raise UsageError(
                f"{root} is {source.info.version}, and edits make {VERSION}: choose another folder "
                "(--output=DIR), or convert it first (proctor data convert)"
            )
        linked = place.in_place and place.backup is None
        return build(replace(make(source), linked=linked), place)


def build(recipe: Recipe, place: Place) -> Built:
    """Make the dataset of ``recipe`` and put it at ``place``.

    Raises:
        DatasetError: a source is damaged.
        UsageError: the place is taken, in use or full; what was there is as it was.
    """
    for root in {kept.source.root.resolve() for kept in recipe.kept}:
        if root in place.root.resolve().parents:
            raise UsageError(f"{place.root} is inside {root}; choose a folder beside it")
    for kept in recipe.kept:
        if kept.row.length < 1:
            raise DatasetError(
                f"{kept.source.root}: episode {kept.row.index} has no frames; take it out first "
                f"(proctor data delete {kept.source.root} --episodes=[{kept.row.index}])"
            )
    with building(place) as into:
        info, filmed = _write(recipe, into)
        if len({kept.source.root for kept in recipe.kept}) > 1:
            (into / CARD_FILE).write_text(merged_card(recipe, place.root.name))
    again = {key: found.again for key, found in filmed.items() if found.again}
    return Built(place.root, info, again)


def _write(recipe: Recipe, into: Path) -> tuple[Info, dict[str, Filmed]]:
    parts = parts_of(recipe, lambda row: row.data)
    numbering = number(recipe, parts)
    filmed = {key: write_videos(recipe, key, into) for key in recipe.info.video_keys}
    seen = {key: found.levels for key, found in filmed.items() if found.levels}
    counting = Counting(recipe, seen)
    files = write_frames(recipe, parts, numbering, into, counting.hear)
    rows = _rows(recipe, numbering, files, filmed)
    for position, start in enumerate(range(0, len(rows), _ROWS_OF_A_FILE)):
        chosen = slice(start, start + _ROWS_OF_A_FILE)
        file = numbered(recipe.info, position)
        write_episodes(into, rows[chosen], counting.episodes[chosen], *file)
    _keep_levels(counting, into)
    write_tasks(into, numbering.tasks)
    write_stats(into, counting.total())
    sources = list(dict.fromkeys(kept.source.root for kept in recipe.kept))
    if len(sources) == 1:
        take_over_the_rest(sources[0], into, linked=recipe.linked)
    elif SUBTASK_INDEX in recipe.info.features and (sources[0] / SUBTASKS_FILE).is_file():
        take_over(sources[0] / SUBTASKS_FILE, into / SUBTASKS_FILE, linked=recipe.linked)
    info = replace(
        recipe.info,
        total_episodes=len(rows),
        total_frames=sum(row.length for row in rows),
        total_tasks=len(numbering.tasks),
        splits={"train": f"0:{len(rows)}"},
    )
    write_info(into, info)
    return info, filmed


def _keep_levels(counting: Counting, into: Path) -> None:
    """Keep what is known of pictures, so that whoever goes on has quantiles of all of them."""
    workshop = Workshop(into)
    for episode, levels in enumerate(counting.levels):
        for key, counts in levels.items():
            if counts is not None:
                workshop.write_levels(key, episode, counts)


def _rows(
    recipe: Recipe,
    numbering: Numbering,
    files: Sequence[FileNumber],
    filmed: Mapping[str, Filmed],
) -> list[EpisodeRow]:
    rows = []
    for place, kept in enumerate(recipe.kept):
        _, first = np.unique(numbering.new_tasks[place], return_index=True)
        tasks = [int(numbering.new_tasks[place][i]) for i in sorted(first)]
        start = numbering.starts[place]
        rows.append(
            EpisodeRow(
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
