"""Arrays as GR00T's wire has them: {"__ndarray_class__": true, "as_npy": a .npy file}, or newer,
msgpack_numpy's {nd, type, kind, shape, data}. Nothing is unpickled."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from proctor.errors import WireError
from proctor.features import Array
from proctor.wire.packing import array_of, number_of, raw_bytes, shown

_ND = (b"nd", "nd")
_NPY = b"\x93NUMPY\x01\x00"
_NPY_HEAD = re.compile(
    r"\{'descr': '([^']{1,8})', 'fortran_order': (True|False), "
    r"'shape': \(((?:[0-9]{1,18},? ?){0,9})\), *\}\s*"
)
_MOST_HEAD = 1000


def tree_of(value: Any, *, newer: bool = False) -> Any:
    """Return a tree whose arrays are maps, of the older kind or of the newer."""
    if isinstance(value, dict):
        return {key: tree_of(item, newer=newer) for key, item in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    if not newer:
        return {"__ndarray_class__": True, "as_npy": _npy(value)}
    told = {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
    return {**told, b"data": raw_bytes(value)}


def has_newer(tree: Any) -> bool:
    """Whether there is an array of the newer kind in a tree that was not read yet."""
    if isinstance(tree, dict):
        return any(nd in tree for nd in _ND) or any(map(has_newer, tree.values()))
    return isinstance(tree, list) and any(map(has_newer, tree))


def _npy(values: Array) -> bytes:
    """Return an array as the bytes of a .npy file."""
    shape = f"({', '.join(map(str, values.shape))}{',' * (values.ndim == 1)})"
    told = f"{{'descr': '{values.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    head = told.ljust(-(-(len(told) + 11) // 64) * 64 - 11) + "\n"  # numpy begins the numbers at 64
    return b"".join([_NPY, struct.pack("<H", len(head)), head.encode(), raw_bytes(values)])


def _from_npy(data: Any) -> Array:
    """Return the array in the bytes of a .npy file; it is as long as what came of it."""
    if not isinstance(data, bytes) or data[:6] != _NPY[:6]:
        raise WireError("an array's .npy is none")
    length = "<H" if data[6:7] == b"\x01" else "<I"
    begins = 8 + struct.calcsize(length)
    if len(data) < begins:
        raise WireError("an array's .npy is cut short")
    ends = begins + struct.unpack(length, data[8:begins])[0]
    head = _NPY_HEAD.fullmatch(data[begins : min(ends, begins + _MOST_HEAD)].decode("latin-1"))
    if head is None:
        raise WireError(f"an array's .npy begins with {shown(data[begins : begins + 100])}")
    shape = tuple(int(side) for side in head[3].replace(",", " ").split())
    if head[2] == "False":
        return array_of(data[ends:], head[1], shape)
    return array_of(data[ends:], head[1], shape[::-1]).T


def read(tree: Any) -> Any:
    """Return a tree with arrays in it, of either kind.

    Raises:
        WireError: one of them is none.
    """
    if isinstance(tree, list):
        return [read(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "__ndarray_class__" in tree:
        return _from_npy(tree.get("as_npy"))
    for nd in _ND:
        if nd in tree:
            return _from_msgpack_numpy(tree, as_bytes=isinstance(nd, bytes))
    return {key: read(value) for key, value in tree.items()}


def _from_msgpack_numpy(tree: Mapping[Any, Any], *, as_bytes: bool) -> Array:
    def told(name: str) -> Any:
        return tree.get(name.encode() if as_bytes else name)

    if told("nd") is not True:
        data = told("data")
        if isinstance(data, bytes):
            return array_of(data, told("type"), ())
        return number_of(data, told("type"))
    if told("kind") in (b"O", "O", b"V", "V"):
        raise WireError("an array of objects is not read")
    return array_of(told("data"), told("type"), told("shape"))
