"""PyArrow, which reads and writes tables, imported in one place: it may be missing or not load."""

from __future__ import annotations

from proctor.system.optional import LOAD_ERRORS, import_failure

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except LOAD_ERRORS as error:
    raise import_failure(error, "pyarrow", "dataset") from None

__all__ = ["pa", "pq"]
