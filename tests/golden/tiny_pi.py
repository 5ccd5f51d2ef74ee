"""pi0 and its relatives as small as their goldens have them."""

from __future__ import annotations

from typing import Any

import torch
from recipes import fill_weights, load_case
from tests.tiny_pi import tiny_sizes

from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.pi0.config import Pi0Config, Pi05Config
from proctor.policies.pi0.network import FlowMatchingNetwork, Pi0, Pi05

FLOWS: dict[str, Any] = {"pi0_tiny": (Pi0Config, Pi0), "pi05_tiny": (Pi05Config, Pi05)}


def tiny_flow(
    name: str,
) -> tuple[FlowMatchingNetwork, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return a network of a golden, its inputs and what LeRobot made of them."""
    raw, inputs, expected = load_case(name)
    config_class, network_class = FLOWS[name]
    with tiny_sizes():
        network = network_class(decode_config(raw, config_class, "golden"))
    with torch.no_grad():
        fill_weights(network, "model.")
    return network.eval(), inputs, expected
