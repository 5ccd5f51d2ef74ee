"""Messages between engine and workers as bytes, which Python 3.8 and every version of numpy read.

The two messages of every decision have a short form of their own. The others are pickled.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
from typing import Any

import numpy as np

from proctor.engine.transport.messages import ExecuteChunk, NeedsActions
from proctor.features import Array

_PROTOCOL = 5
"""Version of pickle that Python 3.8 reads. A pickle begins with the byte 0x80."""
_CHUNK, _NEEDS_ACTIONS = b"c"[0], b"n"[0]
_CHUNK_HEAD = struct.Struct("<BII")  # kind, actions, numbers per action
_STEP = struct.Struct("<BQ")  # kind, step


def encode(message: object) -> bytes:
    """Return the bytes of a message."""
    if type(message) is ExecuteChunk:
        actions = message.actions
        head = _CHUNK_HEAD.pack(_CHUNK, *actions.shape)
        return head + actions.astype("<f4", copy=False).tobytes()
    if type(message) is NeedsActions:
        return _STEP.pack(_NEEDS_ACTIONS, message.step)
    content = io.BytesIO()
    _MessagePickler(content, _PROTOCOL).dump(message)
    return content.getvalue()


def decode(content: bytes | bytearray) -> Any:
    """Return the message; ``content`` is from a process of our own, and no other."""
    kind = content[0]
    if kind == _CHUNK:
        _, *shape = _CHUNK_HEAD.unpack_from(content)
        actions = np.frombuffer(content, "<f4", offset=_CHUNK_HEAD.size)
        return ExecuteChunk(actions.reshape(shape).copy())
    if kind == _NEEDS_ACTIONS:
        return NeedsActions(_STEP.unpack(content)[1])
    return pickle.loads(content)  # noqa: S301  texts of simulators are strings inside a message


def _reduce_array(array: Array) -> tuple[Any, ...]:
    """Return what pickle stores of an array; numpy's own form names modules of its version."""
    return np.ndarray, (array.shape, array.dtype.str, bytearray(array.tobytes()))


class _MessagePickler(pickle.Pickler):
    dispatch_table = {**copyreg.dispatch_table, np.ndarray: _reduce_array}  # noqa: RUF012  a constant
