"""Split a dataset into several: all of them are written, or none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from proctor.datasets.edit import operations
from proctor.datasets.edit.build import BuiltDataset, build, refuse_inside_source
from proctor.datasets.edit.destination import (
    Destination,
    building,
    building_together,
    is_free,
    new_destination,
    undo_unfinished_moves,
)
from proctor.datasets.edit.edit_plan import open_source
from proctor.errors import UsageError


def split_into(
    root: Path, splits: Mapping[str, float | Sequence[int]], base: Path | None = None
) -> dict[str, BuiltDataset]:
    """Write all datasets of a split, in ``base`` or beside ``root``; on an error write none."""
    for name in splits:
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise UsageError(
                f"split {name!r}: this cannot be the name of a folder; choose another name",
                code="dataset.invalid-name",
            )
    plans = operations.split(open_source(root), splits)
    beside = root.resolve()
    if base is None:
        folder, names = beside.parent, {name: f"{beside.name}_{name}" for name in plans}
    else:
        folder, names = Path(os.path.abspath(base)), {name: name for name in plans}  # noqa: PTH100
    undo_unfinished_moves(folder, beside.name)
    for plan, name in zip(plans.values(), names.values(), strict=True):
        refuse_inside_source(plan, new_destination(folder / name))
    all_in_one = building(Destination(folder))  # a kill leaves all or none
    with all_in_one if is_free(folder) else building_together(folder, beside.name) as staging:
        built = {
            name: build(plan, Destination(staging / names[name])) for name, plan in plans.items()
        }
    return {name: replace(made, root=folder / names[name]) for name, made in built.items()}
