"""Read and write Parquet tables, JSON lines and statistics.

Files are untrusted: the memory that a table needs is estimated before it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from proctor.datasets.format.arrow import pa, pq
from proctor.datasets.format.info_file import not_readable
from proctor.errors import DatasetError, strip_control_codes
from proctor.features import Array
from proctor.system.files import atomic_write, read_regular_file, refuse_unreadable

Stats: TypeAlias = dict[str, dict[str, Array]]
"""Feature -> min, max, mean, std, count, q01 ...; a camera's have shape (channels, 1, 1)."""
STATS_FILE = "meta/stats.json"
UNREADABLE = (OSError, ValueError, MemoryError, pa.ArrowException)
"""What PyArrow raises for a truncated, damaged or malicious file."""
_LEAST_ROOM, _GROWTH = 2**27, 100
"""Memory limit of a table in bytes: a base, plus this many bytes per byte of the file. Constant
columns cost nothing on disk, so a small file may claim any size."""


def open_table(path: Path) -> pq.ParquetFile:
    """Open a Parquet file; long repeated strings come as dictionary arrays."""
    try:
        if not path.is_file():
            raise DatasetError(f"{path} is missing", code="dataset.missing-file")
        meta = pq.read_metadata(path)
        leaves = [meta.schema.column(i) for i in range(meta.num_columns)]
        room = _room(path)
        texts = [
            leaf.path
            for i, leaf in enumerate(leaves)
            if leaf.physical_type == "BYTE_ARRAY" and _most_text(meta, i) > room
        ]
        file = pq.ParquetFile(path, metadata=meta, read_dictionary=texts, memory_map=True)
    except UNREADABLE as error:
        raise damaged_table_error(path, error) from None
    names = file.schema_arrow.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DatasetError(
            f"{path}: column {strip_control_codes(repr(twice), 80)} occurs twice",
            code="dataset.damaged-file",
        )
    return file


def _room(path: Path) -> int:
    return _LEAST_ROOM + _GROWTH * path.stat().st_size


def _most_text(meta: pq.FileMetaData, column: int) -> int:
    """Return an upper bound of the bytes of a string column without its dictionary."""
    most = 0
    for group in range(meta.num_row_groups):
        chunk = meta.row_group(group).column(column)
        is_plain = set(chunk.encodings) <= {"PLAIN", "RLE", "BIT_PACKED"}
        most += chunk.total_uncompressed_size * (1 if is_plain else chunk.num_values)
    return most


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table, or those of ``columns`` that it has; strings may be dictionary arrays."""
    file = open_table(path)
    names = file.schema_arrow.names
    wanted = names if columns is None else [name for name in names if name in set(columns)]
    refuse_oversized(path, file.metadata, wanted)
    return pa.table(read_parts(path, file, wanted))


def read_parts(
    path: Path, file: pq.ParquetFile, columns: Sequence[str]
) -> dict[str, pa.ChunkedArray]:
    """Read columns of an open table; strings may be one dictionary array per row group."""
    schema = file.schema_arrow
    inside = [name for name in columns if _has_texts_inside(schema.field(name).type)]
    plain = [name for name in columns if name not in set(inside)]
    try:
        table = file.read(columns=plain, use_threads=False)
        found = {name: table[name] for name in plain}
        # Arrow cannot join dictionaries inside lists and structs, so read them by row group.
        groups = range(file.metadata.num_row_groups if inside else 0)
        parts = [file.read_row_group(i, columns=inside, use_threads=False) for i in groups]
        for name in inside:
            chunks = [chunk for part in parts for chunk in part[name].chunks]
            found[name] = pa.chunked_array(chunks, None if chunks else schema.field(name).type)
    except UNREADABLE as error:
        raise damaged_table_error(path, error) from None
    return {name: found[name] for name in columns}


def _has_texts_inside(kind: pa.DataType) -> bool:
    """Tell whether a type is a list or struct with dictionary strings inside."""
    fields = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return any(
        pa.types.is_dictionary(field.type) or _has_texts_inside(field.type) for field in fields
    )


def refuse_oversized(path: Path, meta: pq.FileMetaData, columns: Sequence[str]) -> None:
    """Refuse a table that needs more memory than a file of its size plausibly can."""
    names, prefixes = set(columns), tuple(f"{name}." for name in columns)
    paths = [meta.schema.column(i).path for i in range(meta.num_columns)]
    chosen = [i for i, name in enumerate(paths) if name in names or name.startswith(prefixes)]
    filled = 8 * meta.num_rows
    for group in (meta.row_group(i) for i in range(meta.num_row_groups)):
        for column in (group.column(i) for i in chosen):
            filled += max(8 * column.num_values, column.total_uncompressed_size)
    if filled > _room(path):
        size = path.stat().st_size
        raise DatasetError(
            f"{path} is damaged: {filled} bytes in a file of {size}", code="dataset.damaged-file"
        )


def text_column(path: Path, array: pa.Array) -> list[Any]:
    """Return the values of a string column; repeated strings share one object."""
    is_coded = pa.types.is_dictionary(array.type)
    try:
        words = list((array.dictionary if is_coded else array).to_pylist())
    except UNREADABLE as error:
        raise damaged_table_error(path, error) from None
    if not is_coded:
        return words
    codes = array.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    words.append(None)
    return [words[code] for code in codes]


def damaged_table_error(path: Path, error: BaseException) -> DatasetError:
    """Return the error for a table that PyArrow cannot read."""
    refuse_unreadable(path, error)
    reason = strip_control_codes(str(error) or type(error).__name__, 200)
    return DatasetError(
        f"{path} is truncated or damaged: {reason}",
        code="dataset.damaged-file",
    )


def write_table(path: Path, *tables: pa.Table) -> None:
    """Write small tables of one schema into a file atomically, one row group per table."""
    sink = pa.BufferOutputStream()  # unlike BytesIO, it needs no GIL: files are written in threads
    with pq.ParquetWriter(sink, tables[0].schema, compression="snappy") as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, len(table)))
    atomic_write(path, sink.getvalue())


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a .jsonl file of a v2.x dataset."""
    try:
        content = read_regular_file(path, 2**30)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing", code="dataset.missing-file") from None
    except OSError as error:
        raise not_readable(path, error) from None
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise DatasetError(
                f"{path}, line {number}: expected a JSON object", code="dataset.invalid-json"
            )
        yield found


def read_stats(root: Path) -> Stats:
    """Return the dataset's statistics; empty if there is no meta/stats.json."""
    path = root / STATS_FILE
    try:
        found = json.loads(read_regular_file(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise not_readable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(
            f"{path} is not JSON: {strip_control_codes(str(error), 200)}",
            code="dataset.invalid-json",
        ) from None
    return as_stats(path, found)


def as_stats(path: Path, found: Any) -> Stats:
    """Convert statistics from JSON to float64 arrays; counts keep their type."""
    stats: Stats = {}
    try:
        for key, entry in found.items():
            arrays = {name: np.asarray(value) for name, value in entry.items()}
            if not all(array.dtype.kind in "biuf" for array in arrays.values()):
                raise ValueError
            stats[key] = {
                name: array if name == "count" else array.astype(np.float64)
                for name, array in arrays.items()
            }
    except (AttributeError, ValueError, TypeError, OverflowError):
        raise DatasetError(
            f"{path} has malformed statistics: expected lists of numbers",
            code="dataset.malformed-stats",
        ) from None
    return stats


def write_stats(root: Path, stats: Stats) -> None:
    """Write meta/stats.json atomically."""
    plain = {
        key: {name: np.asarray(value).tolist() for name, value in entry.items()}
        for key, entry in stats.items()
    }
    atomic_write(root / STATS_FILE, json.dumps(plain, indent=4, ensure_ascii=False).encode())
