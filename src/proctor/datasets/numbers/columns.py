"""Columns of data files, decoded once and then gathered batch by batch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from proctor.datasets.format.arrow import pa
from proctor.datasets.format.info import Info
from proctor.datasets.format.tables import (
    UNREADABLE,
    damaged_table_error,
    open_table,
    read_parts,
    text_column,
)
from proctor.errors import DatasetError, strip_control_codes
from proctor.features import Array

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


class Column(Protocol):
    """A column with one value per frame."""

    def take(self, rows: Array) -> Any:
        """Return the values of ``rows``: an array, or lists, of the shape of ``rows``."""


@dataclass(frozen=True)
class NumericColumn:
    """Numbers of a fixed shape; shape (1,) is one scalar per frame."""

    values: Array

    def take(self, rows: Array) -> Array:
        """Return the values of ``rows``, copied."""
        return self.values.take(rows, axis=0)


@dataclass(frozen=True)
class TextColumn:
    """Strings; repeated ones share one object."""

    codes: Array
    words: list[str]

    def take(self, rows: Array) -> Any:
        """Return the strings of ``rows``, as lists."""
        return _nested([self.words[code] for code in self.codes[rows].ravel()], rows.shape)


@dataclass(frozen=True)
class ObjectColumn:
    """Values of other Arrow types, such as language messages and encoded images."""

    where: Path
    """The dataset's folder, for messages."""
    parts: list[pa.Array]
    starts: Array
    """First row of each chunk."""

    def take(self, rows: Array) -> Any:
        """Return the values of ``rows``, as lists."""
        flat = rows.ravel()
        parts = np.searchsorted(self.starts, flat, side="right") - 1
        within = flat - self.starts[parts]
        places = zip(parts.tolist(), within.tolist(), strict=True)
        try:
            found = [_with_values(self.parts[part][i].as_py()) for part, i in places]
        except UNREADABLE as error:
            raise damaged_table_error(self.where, error) from None
        return _nested(found, rows.shape)


def _with_values(found: Any) -> Any:
    """Return messages with decoded tool calls, which are stored as JSON."""
    for saying in found if isinstance(found, list) else ():
        if isinstance(saying, dict) and isinstance(saying.get("tool_calls"), list):
            saying["tool_calls"] = [_value(call) for call in saying["tool_calls"]]
    return found


def _value(call: Any) -> Any:
    try:
        return json.loads(call)
    except (TypeError, ValueError, RecursionError):  # not JSON: unchanged
        return call


def _nested(flat: list[Any], shape: tuple[int, ...]) -> Any:
    if len(shape) == 1:
        return flat
    width = int(np.prod(shape[1:]))
    parts = (flat[i : i + width] for i in range(0, len(flat), width))
    return [_nested(part, shape[1:]) for part in parts]


@dataclass(frozen=True)
class TableFile:
    """A data file; its first ``rows`` rows are [start, start + rows) of all rows that are read."""

    path: Path
    start: int
    rows: int


def number_shape(info: Info, key: str) -> tuple[int, ...]:
    """Return the shape of a numeric column in one frame; scalars have no axes, as in LeRobot."""
    shape = info.shape(key)
    return () if shape == (1,) else shape


def column_to_array(path: Path, info: Info, key: str, column: pa.ChunkedArray) -> Array:
    """Return a column of a data file as an array [rows, ...] of the declared dtype."""
    shape, dtype = number_shape(info, key), np.dtype(info.dtype(key))
    kind = pa.from_numpy_dtype(dtype)
    try:
        parts = [_flat(chunk, kind) for chunk in column.chunks]
        whole = np.concatenate(parts) if parts else np.empty(0, dtype)
        return whole.reshape(len(column), *shape)
    except UNREADABLE as error:
        found = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        raise DatasetError(
            f"{path}: column {key} is {strip_control_codes(str(found), 80)}, not {info.dtype(key)} "
            f"{list(info.shape(key))} in every row ({strip_control_codes(str(error), 120)})",
            code="dataset.wrong-type",
        ) from None


def _flat(array: pa.Array, kind: pa.DataType) -> Array:
    while True:
        if array.null_count:
            raise ValueError("some values are missing")
        if isinstance(array, pa.ExtensionArray):  # another package registered the type
            array = array.storage
        elif any(is_list(array.type) for is_list in _LISTS):
            array = array.flatten()
        else:
            break
    if not pa.types.is_primitive(array.type):
        raise ValueError("the values are not numbers")
    if array.type != kind:
        array = array.cast(kind)
    values: Array = array.to_numpy(zero_copy_only=False)
    return values


def check_length(table: TableFile) -> None:
    """Check that a data file has enough rows for its episodes; only its footer is read."""
    check_columns(table, open_table(table.path), ())


def check_columns(table: TableFile, file: Any, keys: Sequence[str]) -> None:
    """Check that an open data file has the columns, and enough rows for its episodes."""
    names = set(file.schema_arrow.names)
    missing = [key for key in keys if key not in names]
    if missing:
        raise DatasetError(
            f"{table.path} has no column {missing[0]}, which meta/info.json names",
            code="dataset.missing-column",
        )
    rows = file.metadata.num_rows
    if rows < table.rows:
        raise DatasetError(
            f"{table.path} has {rows} rows, expected {table.rows}",
            code="dataset.wrong-length",
        )


def read_columns(table: TableFile, file: Any, keys: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """Return columns of an open data file, limited to the rows of its episodes."""
    check_columns(table, file, keys)
    parts = read_parts(table.path, file, keys)
    return {key: part.slice(0, table.rows) for key, part in parts.items()}


def image_bytes(path: Path, key: str, array: pa.Array) -> pa.Array:
    """Return the encoded images of a column."""
    kind = array.type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        array = array.field("bytes")
        kind = array.type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise DatasetError(
            f"{path}: column {key} is {strip_control_codes(str(kind), 80)}, not images",
            code="dataset.wrong-type",
        )
    return array


def concat_texts(where: Path, chunks: Iterable[pa.Array]) -> TextColumn:
    """Return the strings of several data files in folder ``where`` as one column."""
    words: dict[str, int] = {}
    codes = [
        words.setdefault("" if text is None else str(text), len(words))
        for chunk in chunks
        for text in text_column(where, chunk)
    ]
    return TextColumn(np.array(codes, np.int32), list(words))


def concat_objects(where: Path, chunks: Iterable[pa.Array]) -> ObjectColumn:
    """Return the values of several data files in folder ``where`` as one column."""
    parts = [chunk for chunk in chunks if len(chunk)]
    starts = list(itertools.accumulate((len(part) for part in parts), initial=0))[:-1]
    return ObjectColumn(where, parts, np.array(starts or [0], np.int64))
