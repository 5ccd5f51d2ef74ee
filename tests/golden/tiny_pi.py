"""pi0 and its relatives as small as their goldens have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from recipes import fill_weights, load_case

from proctor.policies.lerobot.config import decode_config
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.config import Pi0Config
from proctor.policies.pi0.network import Flow, Pi0
from proctor.policies.pi0.sizes import GemmaSize, VisionSize
from proctor.policies.pi05.config import Pi05Config
from proctor.policies.pi05.network import Pi05

TINY_VISION = VisionSize(24, 2, 40, 2, 14)
FLOWS: dict[str, Any] = {"pi0_tiny": (Pi0Config, Pi0), "pi05_tiny": (Pi05Config, Pi05)}


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


def tiny_flow(name: str) -> tuple[Flow, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return a network of a golden, its inputs and what LeRobot made of them."""
    raw, inputs, expected = load_case(name)
    config_class, network_class = FLOWS[name]
    with tiny_sizes():
        network = network_class(decode_config(raw, config_class, "golden"))
    with torch.no_grad():
        fill_weights(network, "model.")
    return network.eval(), inputs, expected
