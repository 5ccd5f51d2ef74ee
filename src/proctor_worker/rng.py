"""The global random generators, seeded as Proctor seeds them in its own processes."""

import random

SEED_BEFORE_RESET = 0
"""Seed while a simulator is created, before its first reset."""


def seed_global_rng(seed: int) -> None:
    """Seed ``random`` and ``np.random``."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
