"""Frames between Proctor and a world's process: a JSON header and raw arrays, never pickle.

A frame is a fixed head (magic, length of the header, length of the payload), the header as JSON,
and the payload: plain bytes, then the arrays. The header's ``arrays`` lists name, dtype and shape
of each array, and whether it lies in shared memory; the payload then has its position there.
Numbers that change from step to step are in the payload, so that most headers equal an earlier one
and are encoded and decoded once.
"""

import json
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Sequence, Tuple

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

MAGIC = b"PRW2"
HEAD = struct.Struct("<4sIQ")
POSITION = struct.Struct("<Q")
LARGEST_HEADER, LARGEST_PAYLOAD = 2**26, 2**31
"""Bytes. A longer frame is refused before memory is allocated for it."""


class ChannelClosed(Exception):
    """The other side is gone."""


class FrameError(Exception):
    """The other side sent bytes that are no frame."""


class ArrayEntry(NamedTuple):
    """An array of a frame."""

    name: str
    dtype: "np.dtype[Any]"
    shape: Tuple[int, ...]
    shared: bool
    """Whether it lies in shared memory."""
    size: int
    """Bytes of the array."""


class Header(NamedTuple):
    """A decoded header."""

    fields: Dict[str, Any]
    """Shared between equal frames: do not change it."""
    arrays: Tuple[ArrayEntry, ...]
    array_bytes: int
    """Bytes of the arrays in the payload."""


Layout = Tuple[Tuple[str, str, Tuple[int, ...], bool], ...]
"""Name, dtype, shape and ``shared`` of each array."""


def encode_header(fields: Mapping[str, Any], layout: Sequence[Any] = ()) -> bytes:
    """Return a header as JSON."""
    return json.dumps({**fields, "arrays": layout}, separators=(",", ":")).encode()


def encode_frame(header: bytes, parts: Sequence[bytes]) -> bytes:
    """Return a frame whose payload consists of ``parts``."""
    size = sum(map(len, parts))
    return b"".join((HEAD.pack(MAGIC, len(header), size), header, *parts))


@lru_cache(maxsize=256)
def decode_header(encoded: bytes) -> Header:
    """Return the header; equal bytes give the same object.

    Raises:
        FrameError: it is no JSON object with a list of arrays.
    """
    try:
        fields = json.loads(encoded.decode())
    except (ValueError, RecursionError) as error:
        raise FrameError("a header that is not JSON: %s" % error) from None
    if not isinstance(fields, dict) or not isinstance(fields.get("arrays"), list):
        raise FrameError("a header without a list of arrays")
    arrays = tuple(_array_entry(entry) for entry in fields.pop("arrays"))
    in_payload = sum(POSITION.size if entry.shared else entry.size for entry in arrays)
    return Header(fields, arrays, in_payload)


def _array_entry(entry: Any) -> ArrayEntry:
    """Return an array's entry.

    Raises:
        FrameError: it is no array of numbers.
    """
    if not isinstance(entry, list) or len(entry) != 4 or not isinstance(entry[2], list):
        raise FrameError("a header with an unknown array entry")
    name, kind, shape, shared = entry
    try:
        dtype = np.dtype(kind)
    except (TypeError, ValueError) as error:
        raise FrameError("an array of unknown type %r" % (kind,)) from error
    if dtype.kind not in "biuf" or any(not isinstance(n, int) or n < 0 for n in shape):
        raise FrameError("an array of type %r and shape %r" % (kind, shape))
    size = dtype.itemsize
    for n in shape:
        size *= n
    return ArrayEntry(str(name), dtype, tuple(shape), bool(shared), size)
