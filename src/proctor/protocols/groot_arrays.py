"""GR00T's two encodings of arrays; neither is unpickled.

The older one is {"__ndarray_class__": true, "as_npy": .npy data}, the newer one msgpack_numpy's
{nd, type, kind, shape, data}. The header of .npy data is parsed in one pass.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from proctor.errors import ProtocolError
from proctor.features import Array
from proctor.protocols.formats.msgpack_arrays import (
    decode_array,
    decode_scalar,
    raw_bytes,
    read_tree,
    short_repr,
    write_tree,
)

_ND = (b"nd", "nd")


def encode_arrays(value: Any, *, msgpack_numpy: bool = False) -> Any:
    """Replace arrays in a tree by maps, in the older encoding or as ``msgpack_numpy``."""
    return write_tree(value, _as_msgpack_numpy if msgpack_numpy else _as_npy)


def _as_npy(values: Array) -> dict[str, Any]:
    return {"__ndarray_class__": True, "as_npy": write_npy(values)}


def _as_msgpack_numpy(values: Array) -> dict[bytes, Any]:
    header = {b"nd": True, b"type": values.dtype.str, b"kind": b"", b"shape": values.shape}
    return {**header, b"data": raw_bytes(values)}


def uses_msgpack_numpy(tree: Any) -> bool:
    """Return whether an undecoded tree has an array in msgpack_numpy's encoding."""
    if isinstance(tree, dict):
        return any(nd in tree for nd in _ND) or any(map(uses_msgpack_numpy, tree.values()))
    return isinstance(tree, list) and any(map(uses_msgpack_numpy, tree))


def decode_arrays(tree: Any) -> Any:
    """Replace encoded arrays in a tree, of either encoding, by numpy arrays."""
    return read_tree(tree, _decode_array)


def _decode_array(tree: Mapping[Any, Any]) -> Array | None:
    if "__ndarray_class__" in tree:
        return read_npy(tree.get("as_npy"))
    nd = next((nd for nd in _ND if nd in tree), None)
    return None if nd is None else _from_msgpack_numpy(tree, as_bytes=isinstance(nd, bytes))


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


_MAGIC = b"\x93NUMPY"
_LENGTHS = {1: "<H", 2: "<I", 3: "<I"}
"""Format of the header's length field, by major version."""
_MAX_HEADER_BYTES = 1000
_MAX_SIDE_DIGITS = 10


def write_npy(values: Array) -> bytes:
    """Encode an array as the bytes of a .npy file."""
    shape = f"({', '.join(map(str, values.shape))}{',' * (values.ndim == 1)})"
    fields = f"{{'descr': '{values.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    head = fields.ljust(-(-(len(fields) + 11) // 64) * 64 - 11) + "\n"  # data starts at 64
    magic = _MAGIC + b"\x01\x00"
    return b"".join([magic, struct.pack("<H", len(head)), head.encode(), raw_bytes(values)])


def read_npy(data: Any) -> Array:
    """Decode the bytes of a .npy file, as a view of them."""
    if not isinstance(data, bytes) or not data.startswith(_MAGIC) or len(data) < 12:
        raise ProtocolError("an array's .npy data has no header", code="protocol.invalid-array")
    length = _LENGTHS.get(data[6])
    if length is None:
        raise ProtocolError(
            f"an array's .npy data has version {data[6]}, which is not supported",
            code="protocol.invalid-array",
        )
    begins = 8 + struct.calcsize(length)
    ends = begins + struct.unpack_from(length, data, 8)[0]
    if ends > min(len(data), begins + _MAX_HEADER_BYTES):
        raise ProtocolError(
            "an array's .npy data is truncated, or its header is too long",
            code="protocol.invalid-array",
        )
    header = data[begins:ends]
    try:
        dtype, fortran_order, shape = _read_header(header.decode("latin-1"))
    except ProtocolError:
        raise ProtocolError(
            f"an array's .npy header is invalid: {short_repr(header)}",
            code="protocol.invalid-array",
        ) from None
    numbers = memoryview(data)[ends:]
    if fortran_order:
        return decode_array(numbers, dtype, shape[::-1]).T
    return decode_array(numbers, dtype, shape)


def _read_header(text: str) -> tuple[str, bool, tuple[int, ...]]:
    """Parse dtype, Fortran order and shape from a header in numpy's own format."""
    dtype, text = _between(text, "{'descr': '", "'")
    order, text = _between(text, ", 'fortran_order': ", ",")
    sides, text = _between(text, " 'shape': (", ")")
    if text.rstrip(" \n") not in (", }", ",}", "}") or order not in ("True", "False"):
        raise ProtocolError("invalid header", code="protocol.invalid-array")
    parts = [side.strip(" ") for side in sides.split(",")]
    if parts[-1] == "":
        parts.pop()
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ProtocolError("invalid header", code="protocol.invalid-array")
    if any(len(part) > _MAX_SIDE_DIGITS for part in parts):
        raise ProtocolError("invalid header", code="protocol.invalid-array")
    return dtype, order == "True", tuple(map(int, parts))


def _between(text: str, before: str, after: str) -> tuple[str, str]:
    """Return the text between ``before`` and ``after`` at the beginning, and the rest."""
    found, mark, rest = text.removeprefix(before).partition(after)
    if not text.startswith(before) or not mark:
        raise ProtocolError("invalid header", code="protocol.invalid-array")
    return found, rest
