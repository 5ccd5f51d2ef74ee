"""Split a dataset into several: all of them are written, or none."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from proctor.datasets.edit import operations
from proctor.datasets.edit.build import BuiltDataset, build
from proctor.datasets.edit.destination import new_destination
from proctor.datasets.edit.edit_plan import open_source
from proctor.errors import UsageError


def split_into(
    root: Path, splits: Mapping[str, float | Sequence[int]], base: Path | None = None
) -> dict[str, BuiltDataset]:
    """Write all datasets of a split, in ``base`` or beside ``root``; on an error write none.

    Raises:
        UsageError: as ``operations.split`` and ``build`` do, or a name is not that of a folder.
    """
    for name in splits:
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise UsageError(
                f"split {name!r}: this cannot be the name of a folder; choose another name",
                code="dataset.invalid-name",
            )
    plans = operations.split(open_source(root), splits)
    beside = root.resolve()
    destinations = {
        name: new_destination(base / name if base else beside.with_name(f"{beside.name}_{name}"))
        for name in plans
    }
    built: dict[str, BuiltDataset] = {}
    try:
        for name, plan in plans.items():
            built[name] = build(plan, destinations[name])
    except BaseException:  # splits that were written would block the next try
        for made in built.values():
            shutil.rmtree(made.root, ignore_errors=True)
        raise
    return built
