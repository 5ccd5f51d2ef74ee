"""How large the parts are that a config of this family names; without torch, for it is looked at
before anything is built."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.policies.blocks.encoder_sizes import SiglipSizes


@dataclass(frozen=True)
class GemmaSize:
    """A Gemma: a language model, or an expert that looks at one."""

    width: int
    depth: int
    mlp_dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int


GEMMAS = {
    "gemma_2b": GemmaSize(2048, 18, 16_384, 8, 1, 256),
    "gemma_300m": GemmaSize(1024, 18, 4096, 8, 1, 256),
}
VISION = SiglipSizes(1152, 4304, 27, 16, patch_size=14)
"""So400m/14; a config says the size of its images."""
VOCABULARY = 257_152
"""PaliGemma's tokens."""
TRAINED_SIDE = 224
"""Pixels of a picture's side that pi0-FAST always sees at."""
