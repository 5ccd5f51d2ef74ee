"""The .npy format, which GR00T uses for arrays. The header is parsed in one pass."""

from __future__ import annotations

import struct
from typing import Any

from proctor.errors import ProtocolError
from proctor.features import Array
from proctor.protocols.msgpack_arrays import decode_array, raw_bytes, short_repr

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
