"""The global generators, ``random`` and ``np.random``, for simulators that draw from them.

They belong to the process. Workers are forked from one server and would all draw the same numbers;
and a simulator in the user's own process would draw from the user's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

SEED_BEFORE_RESET = 0
"""Seeds what a simulator draws before its first reset: the same in every process."""


def seed_global_rng(seed: int) -> None:
    """Seed both, as a script would that plays one episode of this seed."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


class IsolatedRng:
    """The generators as one guest of this process sees them, who must not disturb the others'."""

    def __init__(self) -> None:
        self._state: tuple[Any, Any] | None = None

    @contextmanager
    def activated(self) -> Iterator[None]:
        """Put the guest's generators in place of the process's own while the block runs.

        Costs a fraction of a millisecond: for a chunk of steps, rather than for each.
        """
        before = _state()
        if self._state is not None:
            _set_state(self._state)
        try:
            yield
        finally:
            self._state = _state()
            _set_state(before)


def _state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False)


def _set_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
