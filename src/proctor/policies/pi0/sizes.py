"""How large the parts are that a config of this family names; without torch, for it is looked at
before anything is built."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GemmaSize:
    """A Gemma: a language model, or an expert that looks at one."""

    width: int
    depth: int
    mlp_dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class VisionSize:
    """A SigLIP: what pictures are seen with."""

    width: int
    depth: int
    mlp_dim: int
    n_heads: int
    patch: int


GEMMAS = {
    "gemma_2b": GemmaSize(2048, 18, 16_384, 8, 1, 256),
    "gemma_300m": GemmaSize(1024, 18, 4096, 8, 1, 256),
}
VISION = VisionSize(1152, 27, 4304, 16, 14)
"""So400m/14."""
VOCABULARY = 257_152
"""PaliGemma's tokens."""
TRAINED_SIDE = 224
"""Pixels of a picture's side that pi0-FAST always sees at."""
