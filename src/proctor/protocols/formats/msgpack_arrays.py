"""MessagePack frames and arrays from untrusted peers: the reader and writer of three protocols.

Each protocol has its own map for an array, and gives ``read_tree`` and ``write_tree`` a function
that decodes or encodes one. Decoding never calls or imports anything, and never trusts a declared
length: an array is as long as the bytes that were sent for it. A frame is scanned before it is
decoded (``msgpack_scan``). The error for an invalid frame quotes its first bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import numpy as np

from proctor.errors import ProtocolError, strip_control_codes
from proctor.features import Array
from proctor.protocols.formats.msgpack_scan import check_bounds

PROCTOR_KEY = "proctor"
"""Map key of Proctor's extensions to a protocol, between a Proctor client and a Proctor server."""
_SHOWN_BYTES = 48
_MOST_AXES = 8
_MOST_SIDE = 2**31 - 1
_MAX_NAMES, _MAX_NAME = 1024, 256
"""Limits: entries of a flattened observation, and characters of a name in it."""
_MAX_DTYPE = 8
_SHOWN_ITEMS = 8
_SHOWN_BITS = 64
_NUMBERS = re.compile(r"[<>|=]?[biuf][1248]")
_encoder = msgspec.msgpack.Encoder()


def bad_frame(what: str, frame: bytes | memoryview, *, code: str) -> ProtocolError:
    """Return the error for an invalid frame: what is wrong, and its first bytes."""
    return ProtocolError(
        f"{strip_control_codes(what)}; it begins {bytes(frame[:_SHOWN_BYTES])!r}", code=code
    )


@contextmanager
def quoting(frame: bytes | memoryview) -> Iterator[None]:
    """Let errors of reading ``frame`` quote its first bytes."""
    try:
        yield
    except ProtocolError as error:
        raise bad_frame(str(error), frame, code=error.code) from None


def read_tree(tree: Any, decode: Callable[[Mapping[Any, Any]], Array | None]) -> Any:
    """Replace the maps that ``decode`` returns arrays for. ``unpack`` has bounded the depth."""
    if isinstance(tree, list):
        return [read_tree(item, decode) for item in tree]
    if not isinstance(tree, dict):
        return tree
    found = decode(tree)
    return {k: read_tree(v, decode) for k, v in tree.items()} if found is None else found


def write_tree(tree: Any, encode: Callable[[Array], Any]) -> Any:
    """Replace the arrays in nested maps by what ``encode`` returns."""
    if isinstance(tree, dict):
        return {key: write_tree(item, encode) for key, item in tree.items()}
    return encode(tree) if isinstance(tree, np.ndarray) else tree


def pack(tree: Any) -> bytes:
    """Encode a tree of maps, lists, text, numbers and bytes as MessagePack."""
    return _encoder.encode(tree)


def unpack(frame: bytes | memoryview) -> Any:
    """Decode ``frame``, after a scan has found its size and nesting within bounds."""
    try:
        with quoting(frame):
            check_bounds(frame)
        return msgspec.msgpack.decode(frame)
    except (ValueError, OverflowError, msgspec.DecodeError) as error:
        raise bad_frame(
            f"invalid MessagePack ({error})", frame, code="protocol.invalid-msgpack"
        ) from None


def unpack_map(frame: bytes) -> dict[Any, Any]:
    """Decode ``frame``, which must be a map."""
    tree = unpack(frame)
    if not isinstance(tree, dict):
        raise bad_frame(
            f"the message is a {type(tree).__name__}, not a map", frame, code="protocol.wrong-type"
        )
    return tree


def raw_bytes(values: Array) -> memoryview:
    """Return the bytes of an array, copied only if the array is not contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def parse_dtype(named: Any) -> np.dtype[Any]:
    """Return the numpy dtype called ``named``, such as "<f4"."""
    if isinstance(named, str | bytes) and len(named) <= _MAX_DTYPE:
        text = named.decode("latin-1") if isinstance(named, bytes) else named
        with suppress(TypeError):  # such as "f1"
            if _NUMBERS.fullmatch(text):
                return np.dtype(text)
    raise ProtocolError(
        f"{short_repr(named)} is not a numeric dtype", code="protocol.invalid-array"
    )


def decode_array(data: Any, named: Any, shape: Any) -> Array:
    """Return ``data`` as an array of dtype ``named`` and of ``shape``, without a copy."""
    dtype = parse_dtype(named)
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ProtocolError(
            f"an array's data is a {type(data).__name__}, not bytes", code="protocol.invalid-array"
        )
    plausible = isinstance(shape, list | tuple) and len(shape) <= _MOST_AXES
    if not plausible or not all(type(side) is int and 0 <= side <= _MOST_SIDE for side in shape):
        raise ProtocolError(
            f"{short_repr(shape)} is not an array shape", code="protocol.invalid-array"
        )
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ProtocolError(
            f"an array of shape {list(shape)} came with {len(data)} bytes",
            code="protocol.invalid-array",
        )
    try:
        return np.frombuffer(data, dtype).reshape(shape)
    except ValueError as error:  # such as (0, 2147483647, 2147483647, 2147483647)
        raise ProtocolError(
            f"{short_repr(shape)} is not an array shape ({error})", code="protocol.invalid-array"
        ) from None


def decode_scalar(value: Any, named: Any) -> Array:
    """Return one number as a 0-dimensional array."""
    if not isinstance(value, bool | int | float):
        raise ProtocolError(f"{short_repr(value)} is not a number", code="protocol.wrong-type")
    try:
        return np.asarray(value, parse_dtype(named))
    except (OverflowError, ValueError) as error:
        raise ProtocolError(
            f"{short_repr(value)} does not fit its dtype ({error})", code="protocol.wrong-type"
        ) from None


def require_text(value: Any, what: str) -> str:
    """Return ``value``, which must be a text; ``what`` names it in the error."""
    if not isinstance(value, str):
        raise ProtocolError(
            f"{what} is {short_repr(value)}, not a text", code="protocol.wrong-type"
        )
    return value


def array_or_none(value: Any) -> Array | None:
    """Return an array, a list of numbers or a number as an array; None for anything else."""
    if isinstance(value, np.ndarray):
        return value
    items = value if isinstance(value, list) else [value]
    if not items or not all(type(item) in (int, float) for item in items):
        return None
    try:
        return np.asarray(value, np.float64)
    except OverflowError:
        raise ProtocolError(
            f"{short_repr(value)} is not a number", code="protocol.wrong-type"
        ) from None


def flatten_keys(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Flatten nested maps, with slashes in the names: {"images": {"top": ...}} has images/top.

    The map under ``PROCTOR_KEY`` stays as it is. Limits are checked before a name is built.
    """
    found: dict[str, Any] = {}
    _flatten(tree, "", found)
    return found


def _flatten(tree: Mapping[Any, Any], prefix: str, found: dict[str, Any]) -> None:
    for key, value in tree.items():
        if not isinstance(key, str):
            raise ProtocolError(
                f"{short_repr(key)} is not a name of an observation", code="protocol.wrong-type"
            )
        if len(prefix) + len(key) > _MAX_NAME:
            raise ProtocolError(
                f"a name in the observation is longer than {_MAX_NAME} characters",
                code="protocol.too-large",
            )
        if isinstance(value, dict) and key != PROCTOR_KEY:
            _flatten(value, f"{prefix}{key}/", found)
        elif len(found) >= _MAX_NAMES:
            raise ProtocolError(
                f"the observation has more than {_MAX_NAMES} entries", code="protocol.too-large"
            )
        else:
            found[f"{prefix}{key}"] = value


def short_repr(value: Any) -> str:
    """Return a short text for a value of any size, in bounded time."""
    if isinstance(value, list | tuple):
        items = [_shown_item(item) for item in value[:_SHOWN_ITEMS]]
        text = f"[{', '.join(items)}{', ...' * (len(value) > _SHOWN_ITEMS)}]"
    elif isinstance(value, dict):
        text = f"a map of {len(value)}"
    else:
        text = _shown_item(value)
    return text if len(text) <= _SHOWN_BYTES else f"{text[:_SHOWN_BYTES]}..."


def _shown_item(value: Any) -> str:
    if isinstance(value, str | bytes | bytearray):
        return repr(value[:_SHOWN_BYTES])
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    return f"a {type(value).__name__}"


def short_text(value: Any, longest: int) -> str:
    """Return the beginning of a peer's text, or ``short_repr`` of anything else."""
    return value[:longest] if isinstance(value, str) else short_repr(value)
