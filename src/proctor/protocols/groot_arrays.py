"""Arrays as GR00T's wire has them: {"__ndarray_class__": true, "as_npy": a .npy file}, or newer,
msgpack_numpy's {nd, type, kind, shape, data}. Nothing is unpickled."""

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
    """Return a tree whose arrays are maps, of the older kind or of the newer."""
    if isinstance(value, dict):
        return {
            key: encode_arrays(item, msgpack_numpy=msgpack_numpy) for key, item in value.items()
        }
    if not isinstance(value, np.ndarray):
        return value
    if not msgpack_numpy:
        return {"__ndarray_class__": True, "as_npy": write_npy(value)}
    told = {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
    return {**told, b"data": raw_bytes(value)}


def uses_msgpack_numpy(tree: Any) -> bool:
    """Whether there is an array of the newer kind in a tree that was not read yet."""
    if isinstance(tree, dict):
        return any(nd in tree for nd in _ND) or any(map(uses_msgpack_numpy, tree.values()))
    return isinstance(tree, list) and any(map(uses_msgpack_numpy, tree))


def decode_arrays(tree: Any) -> Any:
    """Return a tree with arrays in it, of either kind.

    Raises:
        WireError: one of them is none.
    """
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
    def told(name: str) -> Any:
        return tree.get(name.encode() if as_bytes else name)

    if told("nd") is not True:
        data = told("data")
        if isinstance(data, bytes):
            return decode_array(data, told("type"), ())
        return decode_scalar(data, told("type"))
    if told("kind") in (b"O", "O", b"V", "V"):
        raise ProtocolError("an array of objects is not read", code="protocol.invalid-array")
    return decode_array(told("data"), told("type"), told("shape"))
