"""Gaussian actors of the goldens: networks filled by the recipe, and batches by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from recipes import load_case, recipe_weight

from proctor.policies.gaussian_actor.config import GaussianActorConfig
from proctor.policies.gaussian_actor.network import GaussianActorNetwork
from proctor.policies.lerobot.config.config import decode_config

CASES = ("sac_state", "sac_img_discrete", "sac_resnet10")
TINY_RESNET10 = {
    "model_type": "resnet10", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 24],
}  # fmt: skip
"""config.json of the goldens' image encoder, which LeRobot knew as r10_tiny."""


def write_tiny_resnet10(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY_RESNET10))
    return str(folder)


def fill_parameters(network: torch.nn.Module, prefix: str = "") -> None:
    """Give parameters their recipe value; a shared one has the value of its first name."""
    for name, parameter in network.named_parameters():
        parameter.data.copy_(recipe_weight(prefix + name, parameter.shape))


def load_actor(
    case: str, scratch: Path
) -> tuple[GaussianActorNetwork, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return a golden's network, inputs and expected outputs."""
    raw, inputs, expected = load_case(case)
    given: dict[str, Any] = raw["policy"]
    if given["vision_encoder_name"] is not None:
        given["vision_encoder_name"] = write_tiny_resnet10(scratch / "r10_tiny")
    network = GaussianActorNetwork(decode_config(given, GaussianActorConfig, "golden"))
    fill_parameters(network)
    return network.eval(), inputs, expected


def observation(inputs: dict[str, torch.Tensor], batch: str = "batch0.state.") -> dict[str, Any]:
    """Return the observation of a batch by the policy's names."""
    return {key.removeprefix(batch): v for key, v in inputs.items() if key.startswith(batch)}
