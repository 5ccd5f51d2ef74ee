"""pi0 and its relatives at small size, for tests that use ``tiny_sizes``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from proctor.policies.blocks.encoder_sizes import SiglipSizes
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.sizes import GemmaSize

RUNS = Path(__file__).parent / "golden" / "data" / "pi_runs"
"""Folder of the small tokenizers ``words`` and ``codes``."""
N_WORDS = 542
"""Number of tokens of ``words``."""
TINY_VISION = SiglipSizes(24, 40, 2, 2, patch_size=14)


@contextmanager
def tiny_sizes(n_heads: int = 8, vocabulary: int = 64, side: int = 28) -> Iterator[None]:
    """Make model names mean the small models of the golden data."""
    small = {
        "gemma_2b": GemmaSize(32, 2, 64, n_heads, 1, 8),
        "gemma_300m": GemmaSize(24, 2, 48, n_heads, 1, 8),
    }
    with (
        patch.dict(sizes.GEMMAS, small),
        patch.object(sizes, "VISION", TINY_VISION),
        patch.object(sizes, "VOCABULARY", vocabulary),
        patch.object(sizes, "TRAINED_SIDE", side),
    ):
        yield
