"""What the padding of prompts costs: pi0, pi0.5 and SmolVLA at true widths and a part of the depth.

    python measurements/prompt_lengths.py [--families=pi0,pi05,smolvla --rounds=2]

All parts are as wide as published and less deep by the same factor (language model and expert 2 of
18, vision 3 of 27; SmolVLA 4 of 16 and 3 of 12), so that shares of time are those of the whole. Two
cameras, batch 1, float32, one thread of a CPU; seconds are the process's own, so others may be
busy. Weights are random, and the prompt has 12 words (pi0.5: 50), whatever it is padded to.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from proctor.features import LANGUAGE_MASK, LANGUAGE_TOKENS, STATE, Feature, FeatureKind
from proctor.policies.blocks.encoder_sizes import SiglipSizes
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.config import Pi0Config
from proctor.policies.pi05.config import Pi05Config
from proctor.policies.runtime.network import Network, draw
from proctor.policies.smolvla.config import SmolVlaConfig
from proctor.policies.smolvla.vlm import TextSizes, VlmSizes

CAMERAS = ("observation.images.top", "observation.images.wrist")
LENGTHS = {"pi0": (48, 24, 16), "pi05": (200, 104, 56), "smolvla": (48, 24, 16)}
WORDS = {"pi0": 12, "pi05": 50, "smolvla": 12}


def made(family: str) -> tuple[Network, int]:
    """Return a network of true width, and its pictures' side."""
    features = {key: Feature(FeatureKind.VISUAL, (224, 224, 3), "uint8") for key in CAMERAS}
    features[STATE] = Feature(FeatureKind.STATE, (8,), "float32")
    told: dict[str, Any] = {
        "input_features": features,
        "output_features": {"action": Feature(FeatureKind.ACTION, (7,), "float32")},
    }
    if family == "smolvla":
        from proctor.policies.smolvla.network import SmolVla

        vlm = VlmSizes(TextSizes(num_hidden_layers=4), SiglipSizes(num_hidden_layers=3))
        return SmolVla(SmolVlaConfig(num_vlm_layers=4, load_vlm_weights=False, **told), vlm), 512
    from proctor.policies.pi0.network import Pi0
    from proctor.policies.pi05.network import Pi05

    shallow = {name: replace(size, depth=2) for name, size in sizes.GEMMAS.items()}
    with (
        patch.dict(sizes.GEMMAS, shallow),
        patch.object(sizes, "VISION", replace(sizes.VISION, depth=3)),
        patch.object(sizes, "VOCABULARY", 1000),
    ):
        return (Pi0(Pi0Config(**told)) if family == "pi0" else Pi05(Pi05Config(**told))), 224


def inputs_of(family: str, length: int, side: int) -> dict[str, Tensor]:
    """Return an observation whose prompt is padded to ``length``."""
    heard = torch.arange(length)[None] < WORDS[family]
    tokens = torch.where(heard, torch.arange(length)[None] % 100 + 5, 0)
    pictures = {key: torch.full((1, 3, side, side), 0.5) for key in CAMERAS}
    state = torch.linspace(-1, 1, 8)[None]
    return {**pictures, STATE: state, LANGUAGE_TOKENS: tokens, LANGUAGE_MASK: heard}


def main() -> None:
    """Print seconds, their share of the longest prompt's, and how far actions differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", default="pi0,pi05,smolvla")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for family in given.families.split(","):
        torch.manual_seed(0)
        network, side = made(family)
        network.eval().requires_grad_(False)
        draws = draw(network.draws, torch.Generator().manual_seed(0), 1)
        best: dict[int, float] = {}
        found: dict[int, Tensor] = {}
        for _ in range(given.rounds):
            for length in LENGTHS[family]:
                inputs = inputs_of(family, length, side)
                began = time.process_time()
                found[length] = network.chunk(inputs, draws)
                taken = time.process_time() - began
                best[length] = min(taken, best.get(length, taken))
        longest = LENGTHS[family][0]
        for length, seconds in best.items():
            off = (found[length] - found[longest]).abs().max().item()
            print(
                f"{family:8} {length:4} tokens {seconds:7.2f} s {seconds / best[longest]:6.3f} "
                f"differs by {off:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
