"""GR00T's two encodings of arrays; neither is unpickled.

The older one is {"__ndarray_class__": true, "as_npy": .npy data}, the newer one msgpack_numpy's
{nd, type, kind, shape, data}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from proctor.errors import ProtocolError
from proctor.features import Array
from proctor.protocols.msgpack_arrays import decode_array, decode_scalar, raw_bytes
from proctor.protocols.npy import read_npy, write_npy

_ND = (b"nd", "nd")


def encode_arrays(value: Any, *, msgpack_numpy: bool = False) -> Any:
    """Replace arrays in a tree by maps, in the older encoding or as ``msgpack_numpy``."""
    if isinstance(value, dict):
        return {
            key: encode_arrays(item, msgpack_numpy=msgpack_numpy) for key, item in value.items()
        }
    if not isinstance(value, np.ndarray):
        return value
    if not msgpack_numpy:
        return {"__ndarray_class__": True, "as_npy": write_npy(value)}
    header = {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
    return {**header, b"data": raw_bytes(value)}


def uses_msgpack_numpy(tree: Any) -> bool:
    """Return whether an undecoded tree has an array in msgpack_numpy's encoding."""
    if isinstance(tree, dict):
        return any(nd in tree for nd in _ND) or any(map(uses_msgpack_numpy, tree.values()))
    return isinstance(tree, list) and any(map(uses_msgpack_numpy, tree))


def decode_arrays(tree: Any) -> Any:
    """Replace encoded arrays in a tree, of either encoding, by numpy arrays."""
    if isinstance(tree, list):
        return [decode_arrays(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "__ndarray_class__" in tree:
        return read_npy(tree.get("as_npy"))
    for nd in _ND:
        if nd in tree:
            return _from_msgpack_numpy(tree, as_bytes=isinstance(nd, bytes))
    return {key: decode_arrays(value) for key, value in tree.items()}


def _from_msgpack_numpy(tree: Mapping[Any, Any], *, as_bytes: bool) -> Array:
    def field(name: str) -> Any:
        return tree.get(name.encode() if as_bytes else name)

    if field("nd") is not True:
        data = field("data")
        if isinstance(data, bytes):
            return decode_array(data, field("type"), ())
        return decode_scalar(data, field("type"))
    if field("kind") in (b"O", "O", b"V", "V"):
        raise ProtocolError("arrays of objects are not supported", code="protocol.invalid-array")
    return decode_array(field("data"), field("type"), field("shape"))
