"""Selection of LIBERO-plus tasks by kind of perturbation and difficulty."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from enum import Enum

from proctor.benchmarks.libero_plus.tasks import LEVELS, Dimension, PlusTask
from proctor.benchmarks.selection import split_names
from proctor.errors import UsageError, did_you_mean

ALL = "all"
BASE_ASSETS = "base_assets"
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class Kind(Enum):
    """A kind of task: a dimension, or one half of the layout tasks."""

    CAMERA = "camera"
    ROBOT = "robot"
    LANGUAGE = "language"
    LIGHT = "light"
    BACKGROUND = "background"
    NOISE = "noise"
    MOVED = "moved"
    """Layout: objects are moved."""
    ADDED = "added"
    """Layout: new objects are added."""


_GROUPS = {
    ALL: tuple(Kind),
    Dimension.LAYOUT.value: (Kind.MOVED, Kind.ADDED),
    BASE_ASSETS: (Kind.CAMERA, Kind.ROBOT, Kind.LANGUAGE, Kind.NOISE, Kind.MOVED),
}


def kind_of(task: PlusTask) -> Kind:
    """Return the kind of a task."""
    if task.dimension is not Dimension.LAYOUT:
        return Kind(task.dimension.value)
    return Kind.ADDED if task.needs_new_assets else Kind.MOVED


def chosen_kinds(text: str) -> frozenset[Kind]:
    """Return the kinds that ``--env.perturbation`` names."""
    names = {kind.value: (kind,) for kind in Kind} | _GROUPS
    chosen: list[Kind] = []
    for name in split_names(text, flag="perturbation"):
        if name not in names:
            choice = f" (choose {', '.join(names)})"
            raise UsageError(
                f"--env.perturbation has no {name!r}{did_you_mean(name, names) or choice}",
                code="flag.invalid-value",
            )
        chosen += names[name]
    return frozenset(chosen)


def chosen_levels(text: str | None) -> frozenset[int] | None:
    """Return the levels that ``--env.difficulty`` names: numbers and ranges; None: all tasks."""
    if text is None:
        return None
    chosen: set[int] = set()
    for part in split_names(str(text), flag="difficulty"):
        found = _RANGE.fullmatch(part)
        levels = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
        if not levels or not set(levels) <= set(LEVELS):
            raise UsageError(
                f"--env.difficulty is a level from 1 to 5 or a range as 2-4, not {part!r}",
                code="flag.invalid-value",
            )
        chosen |= set(levels)
    return frozenset(chosen)


def chosen_tasks(
    tasks: Sequence[PlusTask], kinds: Collection[Kind], levels: Collection[int] | None
) -> list[PlusTask]:
    """Return the tasks of these kinds and levels."""
    return [
        task
        for task in tasks
        if kind_of(task) in kinds and (levels is None or task.level in levels)
    ]
