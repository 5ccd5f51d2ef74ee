"""Safe reader of LeRobot's pickles: runs no code from the pickle, in bounded time and memory.

A pickle is a program. ``pickle_machine`` interprets it without imports and without calls to
anything that was sent. The result is walked once: plain values, arrays and LeRobot's records are
accepted, nodes and nesting are counted, and everything else is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from proctor.errors import ProtocolError
from proctor.protocols.formats.msgpack_arrays import bad_frame, quoting
from proctor.protocols.pickle.machine import Budget, PickleMachine
from proctor.protocols.pickle.names import PendingObject, Record

_MAX_DEPTH = 32


def load(
    frame: bytes, budget: Budget | None = None, storage_of: Callable[[Any], Any] | None = None
) -> Any:
    """Load plain values, arrays and LeRobot's records from a pickle.

    Args:
        frame: the pickle.
        budget: limits of the work; the default suits one observation.
        storage_of: returns the storage for a persistent id, for pickles of torch's archives.
    """
    budget = budget or Budget()
    try:
        with quoting(frame):
            loaded = PickleMachine(frame, budget, storage_of=storage_of).run()
            return _finished(loaded, budget, _MAX_DEPTH)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise bad_frame(
            f"invalid pickle ({type(error).__name__})", frame, code="protocol.invalid-pickle"
        ) from None


def _finished(value: Any, budget: Budget, depth: int) -> Any:
    """Replace each PendingObject by its value, and tuples by lists."""
    budget.node()
    if depth < 0:
        raise ProtocolError("a pickle is nested too deeply", code="protocol.too-large")
    if isinstance(value, PendingObject):
        value = value.value()
    if isinstance(value, Record):
        fields = {k: _finished(v, budget, depth - 1) for k, v in value.fields.items()}
        return Record(value.kind, fields)
    if isinstance(value, dict):
        return {k: _finished(v, budget, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finished(item, budget, depth - 1) for item in value]
    if value is None or isinstance(value, bool | int | float | str | bytes | np.ndarray):
        return value
    raise ProtocolError(
        f"a pickle holds a {type(value).__name__}, which is not allowed",
        code="protocol.refused-pickle",
    )
