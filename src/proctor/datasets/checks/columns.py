"""Compare the columns of a data file with the features in info.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from proctor.datasets.checks.findings import DatasetFinding, FindingLevel, RepairCommands
from proctor.datasets.format.arrow import pa
from proctor.datasets.format.info import DEFAULT_FEATURES, Info


def check_schema(
    info: Info, schema: pa.Schema, where: str, mends: RepairCommands
) -> Iterator[DatasetFinding]:
    """Check that every feature has a column of its type, and every column a feature."""
    for key in info.columns:
        mend = "" if key in DEFAULT_FEATURES else mends.without_feature(key)
        if key not in schema.names:
            what = f"no column {key}, which info.json declares"
            yield DatasetFinding(FindingLevel.ERROR, "columns.missing", what, where, mend)
            continue
        found = schema.field(key).type
        if (wrong := _misfit(info, key, found)) is not None:
            yield DatasetFinding(
                FindingLevel.ERROR, "columns.type", f"column {key} {wrong}", where, mend
            )
        elif (wide := _other_width(info.dtype(key), _innermost(found))) is not None:
            what = f"column {key} {wide}"
            yield DatasetFinding(
                FindingLevel.WARNING, "columns.width", what, where, mends.rewritten()
            )
    for name in schema.names:
        if name not in info.columns:
            what = f"column {name} is not declared in info.json: LeRobot refuses the table"
            yield DatasetFinding(
                FindingLevel.ERROR, "columns.undeclared", what, where, mends.rewritten()
            )


def _misfit(info: Info, key: str, found: pa.DataType) -> str | None:
    """Describe how a column differs from its feature; None if it does not."""
    dtype, shape = info.dtype(key), tuple(info.entry(key)["shape"])
    if dtype == "image":
        right = pa.types.is_struct(found) and found.get_field_index("bytes") >= 0
        return None if right else f"holds {found}, expected images"
    if dtype == "language":
        return None if _is_list(found) else f"holds {found}, expected lists of messages"
    depth, inner = 0, found
    while (deeper := _inner(inner)) is not None:
        size = inner.list_size if pa.types.is_fixed_size_list(inner) else None
        if size is not None and depth < len(shape) and size != shape[depth]:
            return f"holds {size} numbers, info.json says {shape[depth]}"
        depth, inner = depth + _is_list(inner), deeper
    if depth != len(shape) and not (depth == 0 and shape in ((1,), ())):
        return f"holds {found}, info.json says shape {list(shape)}"
    expected = _arrow_type(dtype)
    if dtype == "string":
        right = pa.types.is_string(inner) or pa.types.is_large_string(inner)
    else:
        right = _family(inner) == _family(expected) is not None
    return None if right else f"holds {inner}, info.json says {dtype}"


def _other_width(dtype: str, found: pa.DataType) -> str | None:
    if _family(found) is None or found == _arrow_type(dtype):
        return None
    return f"holds {found}, which is read as the {dtype} that info.json says"


def _arrow_type(dtype: str) -> pa.DataType:
    return pa.string() if dtype == "string" else pa.from_numpy_dtype(np.dtype(dtype))


def _family(kind: pa.DataType) -> str | None:
    if pa.types.is_boolean(kind):
        return "truth"
    if pa.types.is_floating(kind):
        return "fraction"
    return "whole" if pa.types.is_integer(kind) else None


def _inner(kind: pa.DataType) -> pa.DataType | None:
    """Return the value type of a list or the storage type of an extension; otherwise None."""
    if isinstance(kind, pa.ExtensionType):
        return kind.storage_type
    return kind.value_type if _is_list(kind) else None


def _innermost(kind: pa.DataType) -> pa.DataType:
    while (inner := _inner(kind)) is not None:
        kind = inner
    return kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def numbers_of(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return a column of numbers or lists of numbers as an array, frames first.

    Raises:
        ValueError: the values are not numbers, or lists have different lengths.
    """
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # PyArrow versions differ
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], column.type)
    shape = [len(values)]
    while _is_list(values.type) or isinstance(values.type, pa.ExtensionType):
        if isinstance(values.type, pa.ExtensionType):
            values = values.storage
            continue
        inner = values.flatten()
        size, rest = divmod(len(inner), max(len(values), 1))
        lengths = (
            {size}
            if pa.types.is_fixed_size_list(values.type)
            else {int(n) for n in np.unique(values.value_lengths().to_numpy(zero_copy_only=False))}
        )
        if rest or (len(values) and lengths != {size}):
            raise ValueError("lists of different lengths")
        shape.append(size)
        values = inner
    if _family(values.type) is None:
        raise ValueError(f"{values.type}, which are not numbers")
    found: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(shape)
    return found
