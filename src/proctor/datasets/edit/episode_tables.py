"""The episodes table of an edited dataset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from proctor.datasets.format.arrow import pa, pq
from proctor.datasets.format.episodes import EpisodeMetadata, write_episodes
from proctor.datasets.format.info import Info, episodes_file
from proctor.datasets.format.tables import Stats, write_table
from proctor.datasets.writing.file_allocation import FileNumber, committed_files, file_number

_ROWS_PER_FILE = 1000
"""Episodes in one file; with their statistics, about ten megabytes."""


def write_new_rows(
    into: Path, info: Info, rows: Sequence[EpisodeMetadata], stats: Sequence[Stats]
) -> None:
    """Write the episodes table of an edit that changed rows or statistics."""
    starts = any(row.start is not None for row in rows)
    for number, first in enumerate(range(0, len(rows), _ROWS_PER_FILE)):
        chosen, file = slice(first, first + _ROWS_PER_FILE), file_number(info, number)
        write_episodes(into, rows[chosen], stats[chosen], *file, starts=starts)


def relocate_rows(
    root: Path, into: Path, info: Info, rows: Sequence[EpisodeMetadata], limit: int
) -> None:
    """Write the episodes table of ``root`` with the data and video locations of ``rows``.

    All other columns stay as they are, also columns of other tools. The table becomes one file, or
    as many as keep each below ``limit`` bytes.
    """
    tables = [pq.ParquetFile(path).read() for path in committed_files(root, len(rows))]
    table = pa.concat_tables(tables, promote_options="permissive")[: len(rows)].combine_chunks()
    table = _with_locations(table, rows)
    size, n_files = 0, 1
    while True:
        ends = [len(rows) * i // n_files for i in range(n_files + 1)]
        for number, (start, stop) in enumerate(pairwise(ends)):
            file = file_number(info, number)
            path = episodes_file(into, *file)
            write_table(path, _with_own_file(table[start:stop], file))
            size = max(size, path.stat().st_size)
        needed = min(size // limit + 1, len(rows))
        if n_files > 1 or needed == 1:
            return
        n_files = needed


def _with_locations(table: pa.Table, rows: Sequence[EpisodeMetadata]) -> pa.Table:
    table = _with_column(table, "data/chunk_index", [row.data[0] for row in rows])
    table = _with_column(table, "data/file_index", [row.data[1] for row in rows])
    for key in rows[0].videos:
        spans = [row.videos[key] for row in rows]
        table = _with_column(table, f"videos/{key}/chunk_index", [span.chunk for span in spans])
        table = _with_column(table, f"videos/{key}/file_index", [span.file for span in spans])
        table = _with_column(table, f"videos/{key}/from_timestamp", [s.from_s for s in spans])
        table = _with_column(table, f"videos/{key}/to_timestamp", [span.to_s for span in spans])
    return table


def _with_own_file(table: pa.Table, file: FileNumber) -> pa.Table:
    table = _with_column(table, "meta/episodes/chunk_index", [file[0]] * len(table))
    return _with_column(table, "meta/episodes/file_index", [file[1]] * len(table))


def _with_column(table: pa.Table, name: str, values: Sequence[int] | Sequence[float]) -> pa.Table:
    """Replace a column; tables of other tools may lack those of ``meta/``."""
    if name not in table.column_names:
        return table
    return table.set_column(table.column_names.index(name), name, pa.array(values))
