"""pi0 and its relatives small: what their models' names mean while a test is in ``tiny_sizes``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from proctor.policies.blocks.encoder_sizes import SiglipSizes
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.sizes import GemmaSize

RUNS = Path(__file__).parent / "golden" / "data" / "pi_runs"
"""Where the small tokenizers are: ``words`` and ``codes``."""
N_WORDS = 542
"""Tokens that ``words`` has."""
TINY_VISION = SiglipSizes(24, 40, 2, 2, patch_size=14)


@contextmanager
def tiny_sizes(n_heads: int = 8, vocabulary: int = 64, side: int = 28) -> Iterator[None]:
    """Let the names of models mean the small ones of the goldens."""
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
