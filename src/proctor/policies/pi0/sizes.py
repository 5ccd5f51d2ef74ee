"""Sizes of the models that configs of the pi0 family name. No torch here: configs import it."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.policies.blocks.encoder_sizes import SiglipSizes


@dataclass(frozen=True)
class GemmaSize:
    """Sizes of a Gemma: a language model or an action expert."""

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
"""SigLIP So400m/14; the image size comes from the config."""
VOCABULARY = 257_152
"""Size of PaliGemma's vocabulary."""
TRAINED_SIDE = 224
"""Side of pi0-FAST's input images, in pixels."""
