"""Convert NumPy arrays to Arrow columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from proctor.datasets.format.arrow import pa
from proctor.features import Array


def as_arrow(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of one value per frame: arrays, strings, messages or PNG files."""
    inner = kind.value_type if pa.types.is_list(kind) else kind
    if pa.types.is_string(inner) or pa.types.is_struct(inner):
        return pa.array(values, kind)
    return rows_as_arrow(np.stack(values), kind)


def rows_as_arrow(rows: Array, kind: pa.DataType) -> pa.Array:
    """Return an array [frames, ...] as a column of numbers or nested lists."""
    if pa.types.is_fixed_size_list(kind):
        flat = pa.array(np.ascontiguousarray(rows).reshape(-1), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    if pa.types.is_list(kind):
        inner = rows_as_arrow(rows.reshape(-1, *rows.shape[2:]), kind.value_type)
        ends = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
        return pa.ListArray.from_arrays(pa.array(ends), inner, type=kind)
    return pa.array(rows.reshape(-1), kind)
