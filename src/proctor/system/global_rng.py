"""The global random generators, ``random`` and ``np.random``, for simulators that use them.

They belong to the process. Workers are forked from one server and would all draw the same numbers.
A simulator in the user's own process would draw from the user's generators.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SEED_BEFORE_RESET = 0
"""Seed while a simulator is created, before its first reset: the same in every process."""


def seed_global_rng(seed: int) -> None:
    """Seed both generators, as a script would for one episode with this seed."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)


class IsolatedRng:
    """A separate state of the global generators, for a simulator in a shared process."""

    def __init__(self) -> None:
        self._state: tuple[Any, Any] | None = None

    @contextmanager
    def activated(self) -> Iterator[None]:
        """Use this state in place of the process's own while the block runs.

        Costs a fraction of a millisecond: use it for a chunk of steps, not for every step.
        """
        before = global_rng_state()
        if self._state is not None:
            set_global_rng_state(self._state)
        try:
            yield
        finally:
            self._state = global_rng_state()
            set_global_rng_state(before)


def global_rng_state() -> tuple[Any, Any]:
    """Return the state of both generators."""
    import numpy as np

    return random.getstate(), np.random.get_state(legacy=False)


def set_global_rng_state(state: tuple[Any, Any]) -> None:
    """Set both generators to an earlier state."""
    import numpy as np

    random.setstate(state[0])
    np.random.set_state(state[1])
