"""Pickles of LeRobot's, read without running anything of them, in bounded time and memory.

A pickle is a program. Ours runs on a machine (``pickle_machine``) that imports nothing and calls
nothing that was sent. What it leaves is walked once: values, arrays and LeRobot's records, whose
nodes and nesting are counted; everything else is refused.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from proctor.errors import ProtocolError
from proctor.protocols.msgpack_arrays import bad_frame
from proctor.protocols.pickle_budget import Budget
from proctor.protocols.pickle_machine import PickleMachine
from proctor.protocols.pickle_names import PendingObject, Record

_MAX_NODES, _MAX_DEPTH = 10_000, 32


def load(frame: bytes) -> Any:
    """Return what a pickle holds, of plain values, arrays and LeRobot's records.

    Raises:
        WireError: it holds anything else, or too much, or is none.
    """
    try:
        return _finished(PickleMachine(frame, Budget()).run(), [_MAX_NODES], _MAX_DEPTH)
    except ProtocolError as error:
        raise bad_frame(str(error), frame, code=error.code) from None
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
        said = f"it is no pickle ({type(error).__name__})"
        raise bad_frame(said, frame, code="protocol.invalid-pickle") from None


def _finished(value: Any, left: list[int], depth: int) -> Any:
    """Return a value with everything in it made; what is shared counts as often as it occurs."""
    left[0] -= 1
    if left[0] < 0 or depth < 0:
        raise ProtocolError(
            "a pickle holds too many things, or is nested too deep", code="protocol.too-large"
        )
    if isinstance(value, PendingObject):
        value = value.value()
    if isinstance(value, Record):
        fields = {k: _finished(v, left, depth - 1) for k, v in value.fields.items()}
        return Record(value.kind, fields)
    if isinstance(value, dict):
        return {k: _finished(v, left, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finished(item, left, depth - 1) for item in value]
    if value is None or isinstance(value, bool | int | float | str | bytes | np.ndarray):
        return value
    raise ProtocolError(f"a pickle holds a {type(value).__name__}", code="protocol.refused-pickle")
