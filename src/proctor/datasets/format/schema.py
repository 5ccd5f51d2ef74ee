"""The Arrow schema of data files, with the metadata that Hugging Face's library reads."""

from __future__ import annotations

import json
from typing import Any

from proctor.datasets.format.arrow import pa
from proctor.datasets.format.info import Info

IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_EXTENSION = "datasets.features.features.Array{}DExtensionType"
_SAID = [("role", pa.string()), ("content", pa.string()), ("style", pa.string())]
_POINTS = [("camera", pa.string()), ("tool_calls", pa.list_(pa.string()))]
_TYPES: dict[str, pa.DataType] = {
    "language_persistent": pa.list_(pa.struct([*_SAID, ("timestamp", pa.float32()), *_POINTS])),
    "language_events": pa.list_(pa.struct([*_SAID, *_POINTS])),
}


def arrow_schema(info: Info) -> pa.Schema:
    """Return the schema of the data files, as LeRobot writes it."""
    fields = [_field(info, key) for key in info.columns]
    if any(info.dtype(key) == "language" for key in info.columns):
        return pa.schema(fields)  # the metadata cannot describe them, and readers do not need it
    note = {"info": {"features": {key: _noted(info, key) for key in info.columns}}}
    return pa.schema(fields, metadata={"huggingface": json.dumps(note)})


def arrow_type(info: Info, key: str) -> pa.DataType:
    """Return the Arrow type of one column."""
    dtype, shape = info.dtype(key), info.shape(key)
    if dtype == "image":
        return IMAGE_TYPE
    if dtype == "language":
        return _TYPES.get(key, _TYPES["language_events"])
    kind = pa.bool_() if dtype == "bool" else pa.type_for_alias(dtype)
    if shape in ((), (1,)):
        return kind
    if len(shape) == 1:
        return pa.list_(kind, shape[0])
    for _ in shape:
        kind = pa.list_(kind)
    return kind


def _field(info: Info, key: str) -> pa.Field:
    """Return a column; a matrix gets the metadata that Hugging Face's library needs."""
    shape, kind = info.shape(key), arrow_type(info, key)
    if info.dtype(key) in ("image", "language") or len(shape) < 2:
        return pa.field(key, kind)
    note = {
        "ARROW:extension:name": _EXTENSION.format(len(shape)),
        "ARROW:extension:metadata": json.dumps([list(shape), info.dtype(key)]),
    }
    return pa.field(key, kind, metadata=note)


def _noted(info: Info, key: str) -> dict[str, Any]:
    dtype, shape = info.dtype(key), info.shape(key)
    if dtype == "image":
        return {"_type": "Image"}
    value = {"dtype": dtype, "_type": "Value"}
    if shape in ((), (1,)):
        return value
    if len(shape) == 1:
        return {"feature": value, "length": shape[0], "_type": "List"}
    return {"shape": list(shape), "dtype": dtype, "_type": f"Array{len(shape)}D"}
