"""The only import of PyArrow: a missing or broken package gives one line with the pip command."""

from __future__ import annotations

from proctor.system.platform.optional import LOAD_ERRORS, import_failure

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except LOAD_ERRORS as error:
    raise import_failure(error, "pyarrow", "dataset") from None

__all__ = ["pa", "pc", "pq"]
